package local

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/ports"
)

func TestUpWithoutFilesSaysSo(t *testing.T) {
	const hint = "no file is named with -f"
	if says := (upFlags{}).starting(&plan.Plan{}, "logs"); !strings.Contains(says, "0 Pods") || !strings.Contains(says, hint) {
		t.Errorf("without files: %q", says)
	}
	if says := (upFlags{files: []string{"mesh.yaml"}}).starting(&plan.Plan{}, "logs"); strings.Contains(says, hint) {
		t.Errorf("with a file: %q", says)
	}
}

func TestUpRefusesAFileThatIsNamedTwice(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	for _, second := range []string{a, dir + "/./a.yaml"} {
		if err := up(t.Context(), command.Env{}, dir, sound(a, second)); process.ExitCode(err) != process.ExitUsage ||
			!strings.Contains(err.Error(), "-f names "+second+" twice") {
			t.Errorf("%s: %v", second, err)
		}
	}
	if err := sound(a, dir).check(); err != nil {
		t.Errorf("a file and its directory: %v", err)
	}
}

// sound are flags of `fairlead up` without a mistake.
func sound(files ...string) upFlags {
	return upFlags{files: files, xdsServers: 1, loopbackRange: ports.DefaultRange, logLevel: "info", fileGrace: defaultFileGrace}
}

// TestUpOfFilesWithoutAnObject: one that is named is refused, one of a directory is warned of.
func TestUpOfFilesWithoutAnObject(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	for _, program := range []string{"ca", "config-watcher", "xds-server", "node-agent", "envoy"} {
		if err := os.WriteFile(filepath.Join(bin, program), nil, 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	comment, empty := filepath.Join(dir, "comment.yaml"), filepath.Join(dir, "empty.yaml")
	testkit.WriteFile(t, comment, []byte("# c\n---\n"))
	testkit.WriteFile(t, empty, nil)
	planned := func(path string) (*plan.Plan, error) {
		f := sound(path)
		f.binDir = bin
		env := command.Env{Executable: "/nowhere/fairlead", Getenv: func(string) string { return "" }}
		p, _, err := f.plan(env, t.TempDir(), netip.MustParsePrefix(ports.DefaultRange))
		return p, err
	}
	for _, path := range []string{comment, empty} {
		if _, err := planned(path); process.ExitCode(err) != process.ExitRefused ||
			!strings.Contains(err.Error(), path+": holds no object; write one, or do not name it") {
			t.Errorf("%s: %v", path, err)
		}
	}
	p, err := planned(dir)
	if err != nil || !slices.Contains(p.Warnings, comment+": holds no object") || !slices.Contains(p.Warnings, empty+": holds no object") {
		t.Errorf("a directory: %v, %v", p, err)
	}
}

func TestFlagsThatStartAMeshAgain(t *testing.T) {
	f := sound("a.yaml")
	if kept := f.kept(); len(kept) > 0 {
		t.Errorf("defaults: %q", kept)
	}
	f.loopbackRange, f.envoy = "127.9.0.0/16", "/opt/envoy"
	if kept := strings.Join(f.kept(), " "); kept != "--loopback-range 127.9.0.0/16 --envoy /opt/envoy" {
		t.Errorf("%q", kept)
	}
}
