package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
)

// TestCommandsOfTheGuidesExist parses every `fairlead` command of the guides, runbooks and README as the command line
// does: the command, its flags with their values, and the number of its arguments; of what the text only mentions, the
// command and the names of flags. It runs none.
func TestCommandsOfTheGuidesExist(t *testing.T) {
	const top = "../../../../"
	files := []string{top + "README.md"}
	for _, dir := range []string{"docs/guide", "docs/runbooks", "samples/bookinfo", "deploy"} {
		found, err := filepath.Glob(top + dir + "/*.md")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	tried := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		whole, mentioned := fairleadCommands(string(text))
		for _, command := range whole {
			if err := parses(command); err != nil {
				t.Errorf("%s: %s: %v", file, strings.Join(command, " "), err)
			}
		}
		for _, command := range mentioned {
			if err := exists(command); err != nil {
				t.Errorf("%s: %s: %v", file, strings.Join(command, " "), err)
			}
		}
		tried += len(whole) + len(mentioned)
	}
	t.Logf("%d commands of %d files", tried, len(files))
	if tried < 150 {
		t.Errorf("only %d commands were found", tried)
	}
}

var (
	block  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inline = regexp.MustCompile("`(fairlead [a-z][^`]*)`")
	word   = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
)

// fairleadCommands lists the commands of a page, each as its words after "fairlead": the whole ones, at the beginning
// of a line of a code block, and those that the text mentions.
func fairleadCommands(text string) (whole, mentioned [][]string) {
	for _, b := range block.FindAllString(text, -1) {
		for line := range strings.SplitSeq(strings.ReplaceAll(b, "\\\n", " "), "\n") {
			line = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "bin/")
			if strings.HasPrefix(line, "fairlead ") {
				whole = append(whole, wordsOf(line))
			}
		}
	}
	for _, m := range inline.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		mentioned = append(mentioned, wordsOf(strings.ReplaceAll(m[1], "\n", " ")))
	}
	return whole, mentioned
}

// wordsOf divides a line as a shell does, as far as the guides need it, up to a comment, a pipe or another command.
func wordsOf(line string) (words []string) {
	for _, w := range word.FindAllString(line, -1)[1:] {
		if strings.HasPrefix(w, "#") || slices.Contains([]string{"|", "&&", ";", "&", ">", "<", "2>&1", "..."}, w) {
			break
		}
		words = append(words, strings.Trim(strings.TrimSuffix(w, ";"), `'"`))
	}
	return words
}

// found is the command that words begin with, and the words after it.
func found(words []string) (*cobra.Command, []string, error) {
	root := newRoot(command.Env{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, Getenv: func(string) string { return "" }})
	return root.Find(words)
}

// exists returns an error unless there is a command of the words, and it has the flags.
func exists(words []string) error {
	cmd, rest, err := found(kindAndName(words))
	if err != nil || cmd.DisableFlagParsing {
		return err
	}
	cmd.InitDefaultHelpFlag()
	for _, w := range rest {
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		switch {
		case strings.HasPrefix(w, "--") && cmd.Flag(name) == nil,
			!strings.HasPrefix(w, "--") && strings.HasPrefix(w, "-") && len(w) == 2 && cmd.Flags().ShorthandLookup(w[1:]) == nil:
			return fmt.Errorf("there is no flag %s", w)
		}
	}
	return nil
}

// parses returns an error unless the command line takes the words.
func parses(words []string) error {
	cmd, rest, err := found(kindAndName(words))
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if len(rest) == 0 && cmd.HasSubCommands() || cmd.DisableFlagParsing {
		return nil // a group, or another command by its old name
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
