package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/istioctl"
	"fairlead.dev/services/installer/internal/proxyview"
)

// listed is the file with the commands of istioctl, a line for each.
const listed = "testdata/istioctl-commands.txt"

// TestEveryCommandOfIstioctlIsThereOrExplained looks every command of istioctl up: fairlead has it, or the table
// istioctl.Commands says what does its work, or why nothing does.
func TestEveryCommandOfIstioctlIsThereOrExplained(t *testing.T) {
	text, err := os.ReadFile(listed)
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(command.Env{Getenv: func(string) string { return "" }})
	root.InitDefaultCompletionCmd("completion")
	there := 0
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[0] == "experimental" && len(words) > 1 {
			words = words[1:] // `fairlead x NAME` is `fairlead NAME`
		}
		if has(root, words) {
			there++
			continue
		}
		// commandHint looks one word up: the first that fairlead does not have.
		hinted := slices.ContainsFunc(istioctl.Commands, func(e istioctl.Command) bool {
			return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(strings.Fields(e.Name), w) }) ||
				mentions(e.Example, words)
		})
		if !hinted {
			t.Errorf("istioctl has %q: fairlead has neither the command nor a row in the table istioctl.Commands", strings.Join(words, " "))
		}
	}
	if there < 30 {
		t.Errorf("fairlead has %d of istioctl's commands", there)
	}
}

// mentions tells whether the example of a row is about a command: it begins with all of its words, of which the last
// may be one of several with | between.
func mentions(example string, words []string) bool {
	fields := strings.Fields(strings.TrimPrefix(strings.ReplaceAll(example, ",", " "), "x "))
	for i, w := range words {
		if i >= len(fields) || !slices.Contains(strings.Split(fields[i], "|"), w) {
			return false
		}
	}
	return true
}

// has tells whether the tree of commands has one.
func has(root *cobra.Command, words []string) bool {
	at := root
	for i, w := range words {
		next := slices.IndexFunc(at.Commands(), func(c *cobra.Command) bool { return c.Name() == w || c.HasAlias(w) })
		if next < 0 {
			// Sections of proxy-config are arguments.
			return at.Name() == "proxy-config" && i == len(words)-1 && proxyview.IsSection(w)
		}
		at = at.Commands()[next]
	}
	return true
}

// TestCommandsOfIstioctl compares the file with istioctl's own help. ISTIO_BIN is set by `make oracle`.
func TestCommandsOfIstioctl(t *testing.T) {
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN names no directory with istioctl: run `make oracle`")
	}
	var found []string
	var walk func(words ...string)
	walk = func(words ...string) {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "istioctl"),
			append(slices.Clone(words), "--help")...) //nolint:gosec // the program of ISTIO_BIN
		if cmd.Stdout = &out; cmd.Run() != nil {
			t.Fatalf("istioctl %v --help fails", words)
		}
		inside := false
		for line := range strings.Lines(out.String()) {
			fields := strings.Fields(line)
			switch {
			case strings.HasPrefix(line, "Available Commands:"):
				inside = true
			case len(fields) == 0:
				inside = false
			case inside && fields[0] != "help":
				below := append(slices.Clone(words), fields[0])
				found = append(found, strings.Join(below, " "))
				walk(below...)
			}
		}
	}
	walk()
	slices.Sort(found)
	text, err := os.ReadFile(listed)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields(strings.ReplaceAll(string(text), " ", "_")); !slices.Equal(want,
		strings.Fields(strings.ReplaceAll(strings.Join(found, "\n"), " ", "_"))) {
		t.Errorf("istioctl has other commands; write these to %s:\n%s", listed, strings.Join(found, "\n"))
	}
}
