package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// secrets are what private keys and tokens look like, in PEM, in base64 of PEM, in a JWK and as a JWS.
var secrets = regexp.MustCompile(`PRIVATE KEY-----|LS0tLS1CRUdJTi(BQUklW|BFQyBQ|BSU0Eg)|"d":\s*"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}`)

// What a running mesh leaves on the disk belongs to its user alone: directories are closed to others, sockets too, and
// no file that others could read if it were elsewhere holds a key or a token. Logs and the state hold none at all.
func TestFilesOfAMeshArePrivate(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml"}})
	m.WaitReady(t)
	// A Secret given by file and one given by API: neither may come to rest where others read it.
	chain, key := testkit.PKI(t).NewServer("shop.test")
	m.WriteConfig(t, "file-tls.yaml", tlsSecret("file-tls", chain, key, nil))
	applied := filepath.Join(t.TempDir(), "api-tls.yaml")
	testkit.WriteFile(t, applied, []byte(tlsSecret("api-tls", chain, key, nil)))
	if code, _, said := m.CLI(t, "config", "apply", "-f", applied); code != 0 {
		t.Fatalf("apply: %d, %s", code, said)
	}
	mustReach(t, m, m.From(t, "client-0"), clientID)

	roots := []string{m.RunDir()}
	for _, proxy := range m.State(t).Proxies() {
		if dir := filepath.Dir(filepath.Dir(proxy.Agent.AdminSocket)); !strings.HasPrefix(dir, m.RunDir()) {
			roots = append(roots, dir)
		}
	}
	found := map[string]bool{}
	for _, root := range roots {
		checkPrivate(t, root, found)
	}
	// The walk has seen what there is to see.
	for _, holder := range []string{"issuer/key.pem", "ca/root/key.pem", "tokens/admin", "tokens/client-0.apps", "store/"} {
		if !anyContains(found, holder) {
			t.Errorf("no secret found in %s, but in %v: the walk looks in the wrong places", holder, found)
		}
	}
}

// checkPrivate walks a directory and records the files with secrets.
func checkPrivate(t *testing.T, root string, found map[string]bool) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // replaced meanwhile
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		open := info.Mode().Perm()&0o077 != 0
		switch {
		case entry.IsDir() || info.Mode()&fs.ModeSocket != 0:
			if open {
				t.Errorf("%s is open to others: %s", path, info.Mode())
			}
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if os.IsNotExist(err) {
				return nil
			}
			if err != nil {
				return err
			}
			if !secrets.Match(text) {
				return nil
			}
			found[path] = true
			if open {
				t.Errorf("%s holds a key or token and is open to others: %s", path, info.Mode())
			}
			if strings.HasSuffix(path, ".log") || filepath.Base(path) == "state.json" {
				t.Errorf("%s holds a key or token: %q", path, secrets.Find(text))
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func anyContains(paths map[string]bool, part string) bool {
	for path := range paths {
		if strings.Contains(path, part) {
			return true
		}
	}
	return false
}
