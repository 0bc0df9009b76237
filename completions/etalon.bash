# bash completion for etalon. Commands and options are those of `etalon COMMAND --help`, so that none can be missing.

_etalon_commands() {
    "$1" --help 2>/dev/null | sed -n 's/^.* etalon \([a-z][a-z]*\).*/\1/p'
}

_etalon_options() {
    "$1" "$2" --help 2>/dev/null | grep -oE '(^|[ (|])--?[a-z][a-z-]*' | grep -oE -e '-.*' | sort -u
}

_etalon() {
    local etalon=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} words=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="$(_etalon_commands "$etalon") --help --version"
    else
        case $before in
        -t | --tier) words='smoke default full' ;;
        --operator) words=$("$etalon" list operators 2>/dev/null | sed -n 's/^\([^ ]*\) .*/\1/p') ;;
        --variant) words=$("$etalon" list operators 2>/dev/null | sed -n 's/^  *\([^ ]*\) .*/\1/p' | sort -u) ;;
        --guards) words='on off' ;;
        --color) words='auto always never' ;;
        --port) words='ocl ocl: openblas exec: plugin:' ;;
        --limit) words='work_group= local_memory= alloc= no_subgroups' ;;
        --cases | --mutants | --skeleton | --keep | --binaries | --outputs)
            mapfile -t COMPREPLY < <(compgen -d -- "$word")
            return
            ;;
        -o | --results | --junit | --failed | --known)
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            return
            ;;
        *)
            case $word in
            -*) words=$(_etalon_options "$etalon" "$command") ;;
            *)
                case $command in
                list) words='devices operators models' ;;
                describe) words=$("$etalon" list operators 2>/dev/null | sed -n 's/^\([^ ]*\) .*/\1/p') ;;
                *)
                    mapfile -t COMPREPLY < <(compgen -f -- "$word")
                    return
                    ;;
                esac
                ;;
            esac
            ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

complete -o filenames -o bashdefault -F _etalon etalon
