// Package packages tests the deb and the rpm that make packages builds for machines outside of Kubernetes.
package packages

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/process"
)

const unit = "/usr/lib/systemd/system/fairlead-node-agent.service"

// wanted is what both packages have: mode, owner and path, and of a symlink the target.
var wanted = []string{
	"-rw-r--r-- root " + unit,
	"-rwxr-xr-x root /usr/local/bin/envoy",
	"-rwxr-xr-x root /usr/local/bin/node-agent",
	"symlink root /usr/local/bin/pilot-agent -> node-agent",
	"drwxr-xr-x root /etc/certs",
	"drwxr-xr-x root /etc/istio/config",
	"drwxr-xr-x root /var/lib/istio/envoy",
}

// built is the package of that kind, and no other.
func built(t *testing.T, kind string) string {
	t.Helper()
	dir := os.Getenv("PACKAGES")
	if dir == "" {
		t.Skip("PACKAGES does not say where the packages are: make test-packages runs this")
	}
	found, err := filepath.Glob(filepath.Join(dir, "fairlead-node-agent*."+kind))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d packages %s in %s, want 1: %v", len(found), kind, dir, err)
	}
	return found[0]
}

func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	return []byte(process.MustDo(t, exec.CommandContext(t.Context(), name, args...)))
}

func TestDebHasProgramsUnitAndDirectories(t *testing.T) {
	deb := built(t, "deb")
	var got []string
	parents := map[string]bool{}
	archive := tar.NewReader(bytes.NewReader(output(t, "dpkg-deb", "--fsys-tarfile", deb)))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := "/" + strings.Trim(strings.TrimPrefix(h.Name, "."), "/")
		line := fmt.Sprintf("%s %s %s", h.FileInfo().Mode(), h.Uname, name)
		if h.Typeflag == tar.TypeSymlink {
			line = fmt.Sprintf("symlink %s %s -> %s", h.Uname, name, h.Linkname)
		}
		got = append(got, line)
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", name, h.Uid, h.Gid)
		}
		for dir := filepath.Dir(name); dir != "/"; dir = filepath.Dir(dir) {
			parents["drwxr-xr-x root "+dir] = true
		}
	}
	got = slices.DeleteFunc(got, func(line string) bool { return parents[line] })
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(wanted)); !slices.Equal(got, want) {
		t.Errorf("the deb has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	dir := t.TempDir()
	output(t, "dpkg-deb", "-x", deb, dir)
	if said := output(t, filepath.Join(dir, "usr/local/bin/pilot-agent"), "version"); !bytes.Contains(said, []byte("version")) {
		t.Errorf("the agent says %s", said)
	}
	if said := output(t, filepath.Join(dir, "usr/local/bin/envoy"), "--version"); !bytes.Contains(said, []byte("version")) {
		t.Errorf("Envoy says %s", said)
	}
	text, err := os.ReadFile(filepath.Join(dir, unit))
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile(`(?m)^Exec\w+=\+?(\S+)`).FindAllSubmatch(text, -1)
	if len(programs) < 2 {
		t.Fatalf("%d commands in the unit", len(programs))
	}
	for _, p := range programs {
		if !slices.Contains(wanted, "-rwxr-xr-x root "+string(p[1])) {
			t.Errorf("the unit runs %s, which the package does not have", p[1])
		}
	}
}

func TestRPMHasTheSameFiles(t *testing.T) {
	file := built(t, "rpm")
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("no rpm here")
	}
	var got []string
	for line := range strings.Lines(
		string(output(t, "rpm", "-qp", "--qf", `[%{FILEMODES:perms} %{FILEUSERNAME} %{FILENAMES} -> %{FILELINKTOS}\n]`, file))) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), " -> ")
		if mode, rest, _ := strings.Cut(line, " "); strings.HasPrefix(mode, "l") {
			line = "symlink " + rest
		}
		got = append(got, line)
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(wanted)); !slices.Equal(got, want) {
		t.Errorf("the rpm has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	scripts := string(output(t, "rpm", "-qp", "--scripts", file))
	for _, want := range []string{"postinstall scriptlet", "preuninstall scriptlet", "postuninstall scriptlet", "useradd --system",
		"clean-iptables"} {
		if !strings.Contains(scripts, want) {
			t.Errorf("no %q in its scripts:\n%s", want, scripts)
		}
	}
}

// machine runs a script as root in mount and network namespaces of its own, where what dpkg and the package's scripts
// write to is a copy, and no systemd runs.
const machine = `set -eu
work=$1 deb=$2
mount -t tmpfs -o mode=0755 tmpfs "$work"
for dir in /etc /var/lib/dpkg /var/log /usr/lib/systemd/system; do
  mkdir -p "$work$dir"
  cp -a "$dir/." "$work$dir"
done
mkdir -p "$work/local" "$work/var/lib/none"
mount -t tmpfs -o mode=0755 tmpfs /run
mount --bind "$work/local" /usr/local
mount --bind "$work/usr/lib/systemd/system" /usr/lib/systemd/system
mount --bind "$work/etc" /etc
mount --bind "$work/var/log" /var/log
mount --bind "$work/var/lib" /var/lib
userdel istio-proxy 2>/dev/null || true
export DEBIAN_FRONTEND=noninteractive
state() {
  echo "$1: user $(id -un istio-proxy 2>/dev/null || echo none), shell $(getent passwd istio-proxy | cut -d: -f7)"
  for f in /run/secrets/tokens /usr/local/bin/node-agent /usr/lib/systemd/system/fairlead-node-agent.service /etc/certs /var/lib/istio/envoy/cluster.env /var/lib/istio/certs/key.pem; do
    echo "$1: $(stat -c '%A %U %n' "$f" 2>/dev/null || echo "none $f")"
  done
}
dpkg --force-depends -i "$deb" >&2
state installed
mkdir -p /var/lib/istio/certs
echo A=1 >/var/lib/istio/envoy/cluster.env
echo key >/var/lib/istio/certs/key.pem
/usr/local/bin/node-agent init --proxy-uid "$(id -u istio-proxy)" >&2
echo "redirected: $(nft list tables | grep -c fairlead)"
dpkg --force-depends -i "$deb" >&2
state upgraded
echo "redirected: $(nft list tables | grep -c fairlead)"
dpkg -r fairlead-node-agent >&2
state removed
echo "redirected: $(nft list tables | grep -c fairlead || true)"
dpkg -P fairlead-node-agent >&2
state purged
`

func TestDpkgInstallsUpgradesAndRemoves(t *testing.T) {
	deb := built(t, "deb")
	if os.Getuid() != 0 {
		t.Skip("only root can install a package")
	}
	for _, program := range []string{"dpkg", "unshare", "nft", "useradd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s here", program)
		}
	}
	got := strings.Split(strings.TrimSpace(
		string(output(t, "unshare", "-m", "-n", "--propagation", "private", "sh", "-c", machine, "sh", t.TempDir(), deb))), "\n")
	state := func(when, key string, programs bool, env bool) []string {
		out := []string{when + ": user istio-proxy, shell /usr/sbin/nologin", when + ": drwx------ istio-proxy /run/secrets/tokens"}
		file := func(there bool, mode, path string) {
			line := "none " + path
			if there {
				line = mode + " root " + path
			}
			out = append(out, when+": "+line)
		}
		file(programs, "-rwxr-xr-x", "/usr/local/bin/node-agent")
		file(programs, "-rw-r--r--", unit)
		file(programs, "drwxr-xr-x", "/etc/certs")
		file(env, "-rw-r--r--", "/var/lib/istio/envoy/cluster.env")
		file(key != "", "-rw-r--r--", "/var/lib/istio/certs/key.pem")
		return out
	}
	want := slices.Concat(
		state("installed", "", true, false), []string{"redirected: 1"},
		state("upgraded", "key", true, true), []string{"redirected: 1"},
		state("removed", "key", false, true), []string{"redirected: 0"},
		state("purged", "", false, true),
	)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
