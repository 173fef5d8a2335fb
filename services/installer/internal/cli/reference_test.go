package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/istioctl"
)

const referenceHead = `# The command line

Written by ` + "`go test ./services/installer/internal/cli -run TestReference -update`" + ` from the commands themselves; do not edit.

- The mesh is that of the run directory: ` + "`--run-dir`, else `FAIRLEAD_RUN_DIR`, else `.run`" +
	`. Commands that ask services take addresses and a token instead.
- PROXY is ` + "`NAME.NAMESPACE`, `NAME`, or a beginning of it, `pod/NAME` or `deploy/NAME`" + `; ` + "`-n`" + ` names its namespace.
- Tables have a header and are sorted. ` + "`-o json` and `-o yaml`" +
	` are whole and valid also when there is nothing; what is said besides goes to standard error.
- Nothing found is no error where a list was asked for, and exit code 1 where something was named. An unknown name is answered with the nearest one.
- ` + "`fairlead completion bash|zsh|fish --help`" + ` tells how to have commands, proxies, sections, kinds, names and namespaces completed.

`

// TestReference compares docs/reference/cli.md with the commands, and with -update rewrites it.
func TestReference(t *testing.T) {
	root := newRoot(command.Env{Getenv: func(string) string { return "" }})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	var b strings.Builder
	b.WriteString(referenceHead)
	b.WriteString("| command | |\n|---|---|\n")
	all := commands(root)
	for _, c := range all[1:] {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", strings.TrimPrefix(c.CommandPath(), "fairlead "), anchor(c), c.Short)
	}
	fmt.Fprintf(&b, "\n## From istioctl\n\n| istioctl | fairlead |\n|---|---|\n")
	for _, e := range istioctl.Commands {
		if e.Example != "" {
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(e.Example, "|", "\\|"), e.Instead)
		}
	}
	b.WriteString("\n## Exit codes\n\n```text\n" + strings.TrimSpace(exitCodes) + "\n```\n")
	for _, c := range all {
		b.WriteString(reference(c))
	}
	testkit.Golden(t, "../../../../docs/reference/cli.md", []byte(b.String()))
}

// commands lists a command and all below it that users see, in the order of their names.
func commands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "help" {
			continue
		}
		if sub.Name() == "completion" {
			list = append(list, sub)
			continue
		}
		list = append(list, commands(sub)...)
	}
	return list
}

func anchor(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// reference describes one command.
func reference(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n```text\n%s\n", c.CommandPath(), c.Short, strings.TrimSpace(c.UseLine()))
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "aliases: %s\n", strings.Join(c.Aliases, ", "))
	}
	// cobra's own help about completion is a page for each shell.
	if c.Long != "" && c.Long != exitCodes && c.Name() != "completion" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(c.Long))
	}
	if c.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.TrimRight(c.Example, "\n"))
	}
	c.InitDefaultHelpFlag()
	if c.HasAvailableLocalFlags() {
		lines := strings.Split(strings.TrimRight(c.LocalFlags().FlagUsages(), "\n"), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "--help ") })
		if len(lines) > 0 {
			fmt.Fprintf(&b, "\nFlags:\n%s\n", strings.Join(lines, "\n"))
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// TestEveryCommandIsDescribed checks that each command has what its help needs.
func TestEveryCommandIsDescribed(t *testing.T) {
	root := newRoot(command.Env{Getenv: func(string) string { return "" }})
	for _, c := range commands(root) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short description %q", c.CommandPath(), c.Short)
		}
		if f := c.Flags().Lookup("output"); f != nil && f.Shorthand != "o" {
			t.Errorf("%s: --output is -%s", c.CommandPath(), f.Shorthand)
		}
		if f := c.Flags().Lookup("namespace"); f != nil && f.Shorthand != "n" {
			t.Errorf("%s: --namespace is -%s", c.CommandPath(), f.Shorthand)
		}
	}
	for _, e := range istioctl.Commands {
		if e.Name != "" && findNamed(root, e.Name) != nil {
			t.Errorf("istioctl's %s is a command of fairlead", e.Name)
		}
	}
}
