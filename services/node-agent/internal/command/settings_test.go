package command

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/config"
)

const (
	// stockSettings lists what Istio's agent knows: "variable NAME", or "flag COMMAND NAME".
	stockSettings = "testdata/istio-agent.txt"
	// unreadRows are the settings without effect here: "NAME | why"; a name may end with *.
	unreadRows = "testdata/unread.txt"
	page       = "../../../../docs/reference/agent-settings.md"
)

// stockCommands are the commands of Istio's agent whose flags the list has.
var stockCommands = []string{"proxy", "istio-iptables", "request", "wait"}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// readByUs are the variables that the commands look up.
func readByUs(t *testing.T) map[string]bool {
	t.Helper()
	read := map[string]bool{}
	h := config.Host{
		Environ: []string{"POD_NAME=web-0", "POD_NAMESPACE=shop", "INSTANCE_IP=10.0.0.7", "ISTIO_META_DNS_CAPTURE=true"},
		ReadFile: func(name string) ([]byte, error) {
			if name == "/etc/resolv.conf" {
				return []byte("nameserver 10.96.0.10\n"), nil
			}
			return nil, fs.ErrNotExist
		},
		Addresses: func() ([]netip.Addr, error) { return nil, errors.New("not needed") },
		Asked:     func(name string) { read[name] = true },
	}
	for _, role := range []string{"sidecar", "router"} {
		var f config.Flags
		f.Register(pflag.NewFlagSet("", pflag.ContinueOnError))
		if _, err := config.Parse(role, f, h); err != nil {
			t.Fatal(err)
		}
	}
	var f config.RedirectFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Register(set)
	if _, err := config.ParseRedirect(set, &f, h); err != nil {
		t.Fatal(err)
	}
	return read
}

// row says why something of Istio's agent has no effect.
type row struct{ pattern, why string }

func (r row) matches(name string) bool {
	prefix, open := strings.CutSuffix(r.pattern, "*")
	return r.pattern == name || open && strings.HasPrefix(name, prefix)
}

// TestPageOfAgentSettings: every variable and flag of Istio's agent is read here, or has a row that says why not, and a
// page for users lists both. With -update it removes rows of what is read, and writes the page.
func TestPageOfAgentSettings(t *testing.T) {
	read := readByUs(t)
	var rows []row
	for _, line := range readLines(t, unreadRows) {
		pattern, why, ok := strings.Cut(line, " | ")
		if !ok || why == "" {
			t.Fatalf("%s: %q: want NAME | why", unreadRows, line)
		}
		rows = append(rows, row{pattern, why})
	}
	used := map[string]bool{}
	reason := func(name string) string {
		var best row
		for _, r := range rows {
			if r.matches(name) && len(r.pattern) > len(best.pattern) {
				best = r
			}
		}
		used[best.pattern] = true
		return best.why
	}
	root := Root(io.Discard, io.Discard)
	var variables, flags strings.Builder
	for _, line := range readLines(t, stockSettings) {
		kind, name, _ := strings.Cut(line, " ")
		effect := "read"
		switch kind {
		case "variable":
			if strings.HasPrefix(name, "ISTIO_META_") && !read[name] {
				effect = "read, as node metadata"
			} else if !read[name] {
				effect = reason(name)
			}
			fmt.Fprintf(&variables, "| `%s` | %s |\n", name, effect)
		case "flag":
			command, flag, _ := strings.Cut(name, " ")
			switch got := flagOf(t, root, command, flag); {
			case got == nil:
				if effect = reason("--" + flag); effect != "" {
					effect = "refused: " + effect
				}
			case got.Hidden:
				effect = reason("--" + flag)
			case got.Name != flag:
				effect = "read, as `--" + got.Name + "`"
			}
			fmt.Fprintf(&flags, "| `%s` | `--%s` | %s |\n", command, flag, effect)
		default:
			t.Fatalf("%s: %q", stockSettings, line)
		}
		if effect == "" {
			t.Errorf("%s has no effect here: read it, or add a row to %s that says why not", line, unreadRows)
		}
	}
	var kept bytes.Buffer
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.pattern, b.pattern) })
	for _, r := range rows {
		if used[r.pattern] {
			fmt.Fprintf(&kept, "%s | %s\n", r.pattern, r.why)
		}
	}
	testkit.Golden(t, unreadRows, kept.Bytes())
	testkit.Golden(t, page, []byte(`# Settings of Istio's agent

Every variable and flag that Istio's agent (pilot-agent) knows, and what it does here. "read" means as in Istio;
[node-agent](../../services/node-agent/README.md) has the differences. The test `+"`TestPageOfAgentSettings`"+` writes
this page (`+"`make golden`"+`), and `+"`make oracle`"+` compares the list with the real pilot-agent. Many of its variables are
istiod's, which shares code with it, and do nothing in the agent.

Beside these, agents read the files of the downward API (`+"`./etc/istio/pod/labels`, `annotations`"+`), the token and the
roots that Istio mounts, a MeshConfig in `+"`./etc/istio/config/mesh`"+`, and the file that `+"`ISTIO_BOOTSTRAP_OVERRIDE`"+` names.
What a Pod's annotation may not decide is in the README, under Environment.

## Variables

| variable | here |
|---|---|
`+variables.String()+`
## Flags

| command | flag | here |
|---|---|---|
`+flags.String()))
}

// flagOf finds a flag, by Istio's spelling too; nil if the command refuses it.
func flagOf(t *testing.T, root *cobra.Command, command, flag string) *pflag.Flag {
	t.Helper()
	cmd, _, err := root.Find([]string{command})
	if err != nil {
		t.Fatal(err)
	}
	return cmp.Or(cmd.Flags().Lookup(flag), root.PersistentFlags().Lookup(flag))
}

// TestAgentSettingsAreIstios compares the list with the real pilot-agent, which make oracle builds.
func TestAgentSettingsAreIstios(t *testing.T) {
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN does not say where pilot-agent is: make oracle runs this")
	}
	agent := filepath.Join(bin, "pilot-agent")
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), agent, "collateral", "--html_fragment_with_front_matter", "-o",
		dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "pilot-agent.html"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "Environment variables</h2>")
	var got []string
	for _, m := range regexp.MustCompile(`<tr id='[\w-]+'>\s*<td><a href='#[\w-]+'><code>([A-Za-z0-9_]+)</code>`).FindAllStringSubmatch(table,
		-1) {
		got = append(got, "variable "+m[1])
	}
	if len(got) < 100 {
		t.Fatalf("%d variables in the page that pilot-agent prints", len(got))
	}
	for _, command := range stockCommands {
		out, err := exec.CommandContext(t.Context(), agent, command, "--help").Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`).FindAllStringSubmatch(string(out), -1) {
			if m[1] != "help" {
				got = append(got, "flag "+command+" "+m[1])
			}
		}
	}
	slices.Sort(got)
	testkit.Golden(t, stockSettings, []byte(strings.Join(slices.Compact(got), "\n")+"\n"))
}
