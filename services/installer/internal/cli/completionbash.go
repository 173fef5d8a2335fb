package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// wordsWithoutPackage is the function of the package bash-completion that cobra's script calls, for shells without it:
// it divides the line at its blanks, where bash divides at = and : too.
const wordsWithoutPackage = `if ! declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
    _get_comp_words_by_ref()
    {
        local line=${COMP_LINE:0:COMP_POINT}
        read -ra words <<<"$line"
        if [[ $line == *[[:space:]] ]]; then
            words+=("")
        fi
        cword=$((${#words[@]} - 1))
        cur=${words[cword]}
        prev=${words[cword - 1]:-}
    }
fi
`

// completeWithoutPackage has the script for bash work where the package bash-completion is not installed.
func completeWithoutPackage(root *cobra.Command) {
	root.InitDefaultCompletionCmd("completion")
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil || bash.RunE == nil {
		return // cobra names its commands otherwise
	}
	script := bash.RunE
	bash.RunE = func(cmd *cobra.Command, a []string) error {
		if _, err := fmt.Fprint(cmd.OutOrStdout(), wordsWithoutPackage); err != nil {
			return err
		}
		return script(cmd, a)
	}
}
