package cli_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/cli/clitest"
)

// TestBashCompletesWithoutItsPackage sources the script in a bash that has read no other file. A function stands for
// the program.
func TestBashCompletesWithoutItsPackage(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	script, _, err := clitest.Run("", "completion", "bash")
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"fairlead config ge":          "asked: __complete config ge",
		"fairlead config get ":        "asked: __complete config get ",
		"fairlead config get --out=j": "asked: __complete config get --out=j",
	} {
		cmd := exec.Command(bash, "--norc", "--noprofile", "-c", script+`
asked=$2
fairlead() { printf 'asked: %s\n' "$*" >"$asked"; printf 'get\n:4\n'; }
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
__start_fairlead
cat "$asked"`, "bash", line, filepath.Join(t.TempDir(), "asked"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v, %s, want it to be %q", line, err, out, want)
		}
	}
}
