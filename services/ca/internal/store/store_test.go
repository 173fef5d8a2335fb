package store

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/signer/keys"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func config(t *testing.T) Config {
	t.Helper()
	return Config{
		Dir: filepath.Join(t.TempDir(), "ca"), TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), RootTTL: time.Hour, Now: now,
		LockTimeout: 10 * time.Second,
	}
}

func open(t *testing.T, cfg Config) *Root {
	t.Helper()
	root, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestFirstStartMakesARoot(t *testing.T) {
	cfg := config(t)
	root := open(t, cfg)
	c := root.Certificate
	if !root.Created || !c.IsCA || c.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign || c.PublicKeyAlgorithm != x509.ECDSA {
		t.Errorf("root %+v", c)
	}
	if len(c.URIs) != 1 || c.URIs[0].String() != "spiffe://cluster.local" || !c.NotAfter.Equal(now.Add(time.Hour)) {
		t.Errorf("root is for %v until %s", c.URIs, c.NotAfter)
	}
	for path, want := range map[string]fs.FileMode{"": 0o700, "root": 0o700, "root/key.pem": 0o600, "root/cert.pem": 0o600, "lock": 0o600} {
		info, err := os.Stat(filepath.Join(cfg.Dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %04o, want %04o", path, info.Mode().Perm(), want)
		}
	}
	again := open(t, cfg)
	if again.Created || !again.Certificate.Equal(c) {
		t.Error("the second start has another root")
	}
	if text, err := ReadCertificate(cfg.Dir); err != nil || string(text) != string(root.CertPEM) {
		t.Errorf("ReadCertificate: %v", err)
	}
}

// A crash leaves folders that were not renamed yet.
func TestUnfinishedRootIsRemoved(t *testing.T) {
	cfg := config(t)
	unfinished := filepath.Join(cfg.Dir, ".root-123")
	if err := os.MkdirAll(unfinished, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(unfinished, keyName), "half a k")
	open(t, cfg)
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

func TestManyStartsAtOnceMakeOneRoot(t *testing.T) {
	cfg := config(t)
	var group sync.WaitGroup
	roots := make([]*Root, 16)
	for i := range roots {
		group.Go(func() { roots[i], _ = Open(context.Background(), cfg) })
	}
	group.Wait()
	made := 0
	for _, r := range roots {
		if r == nil || !r.Certificate.Equal(roots[0].Certificate) {
			t.Fatalf("not every start has the same root: %v", r)
		}
		if r.Created {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d starts made a root, want 1", made)
	}
}

// A lock that holds between threads may not hold between processes.
func TestManyProcessesMakeOneRoot(t *testing.T) {
	if dir := os.Getenv("FAIRLEAD_TEST_CA_DIR"); dir != "" {
		cfg := config(t)
		cfg.Dir = dir
		root := open(t, cfg)
		_, _ = os.Stdout.Write(root.CertPEM)
		return
	}
	dir := filepath.Join(t.TempDir(), "ca")
	outputs := make([]string, 4)
	var group sync.WaitGroup
	for i := range outputs {
		group.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestManyProcessesMakeOneRoot$")
			cmd.Env = append(os.Environ(), "FAIRLEAD_TEST_CA_DIR="+dir)
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("process %d: %v\n%s", i, err, out)
			}
			outputs[i] = string(out)
		})
	}
	group.Wait()
	for i, out := range outputs {
		if block, _ := pem.Decode([]byte(out)); block == nil {
			t.Fatalf("process %d has no root: %q", i, out)
		}
		if out != outputs[0] {
			t.Error("two processes have different roots")
		}
	}
}

func TestOpenWaitsForTheLockForItsTimeout(t *testing.T) {
	cfg := config(t)
	open(t, cfg)
	unlock, err := private.Lock(t.Context(), filepath.Join(cfg.Dir, lockName), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	cfg.LockTimeout = 30 * time.Millisecond
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "held by another process") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRejects(t *testing.T) {
	other := config(t)
	open(t, other)
	otherCert, err := os.ReadFile(filepath.Join(other.Dir, RootFolder, certName))
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	keyFile, certFile := filepath.Join(RootFolder, keyName), filepath.Join(RootFolder, certName)
	for name, tc := range map[string]struct {
		change func(cfg *Config)
		says   string
	}{
		"no parent":      {func(c *Config) { c.Dir = filepath.Join(c.Dir, "none", "ca") }, "parent directory"},
		"open directory": {func(c *Config) { must(os.Chmod(c.Dir, 0o750)) }, "chmod 0700"},
		"open folder":    {func(c *Config) { must(os.Chmod(filepath.Join(c.Dir, RootFolder), 0o701)) }, "chmod 0700"},
		"readable key":   {func(c *Config) { must(os.Chmod(filepath.Join(c.Dir, keyFile), 0o640)) }, "chmod 0600"},
		"readable cert":  {func(c *Config) { must(os.Chmod(filepath.Join(c.Dir, certFile), 0o644)) }, "chmod 0600"},
		"no key":         {func(c *Config) { must(os.Remove(filepath.Join(c.Dir, keyFile))) }, "incomplete"},
		"no certificate": {func(c *Config) { must(os.Remove(filepath.Join(c.Dir, certFile))) }, "incomplete"},
		"empty key":      {func(c *Config) { write(t, filepath.Join(c.Dir, keyFile), "") }, "restore the file"},
		"half a key": {func(c *Config) { write(t, filepath.Join(c.Dir, keyFile), "-----BEGIN PRIVATE KEY-----\nMIGH") },
			"restore the file"},
		"a damaged key":    {func(c *Config) { write(t, filepath.Join(c.Dir, keyFile), string(pemBlock("PRIVATE KEY", "secret"))) }, "PKCS#8"},
		"a large key":      {func(c *Config) { write(t, filepath.Join(c.Dir, keyFile), strings.Repeat("x", private.MaxFile+1)) }, "too large"},
		"another's cert":   {func(c *Config) { write(t, filepath.Join(c.Dir, certFile), string(otherCert)) }, "is not the key of"},
		"two certificates": {func(c *Config) { write(t, filepath.Join(c.Dir, certFile), string(otherCert)+string(otherCert)) }, "more than one"},
		"no PEM":           {func(c *Config) { write(t, filepath.Join(c.Dir, certFile), "root") }, "CERTIFICATE"},
		"trust domain":     {func(c *Config) { c.TrustDomain = spiffeid.RequireTrustDomainFromString("example.org") }, "--trust-domain"},
		"expired":          {func(c *Config) { c.Now = now.Add(time.Hour) }, "expired"},
		"not yet valid":    {func(c *Config) { c.Now = now.Add(-time.Hour) }, "clock"},
		"key is a link": {
			func(c *Config) {
				path := filepath.Join(c.Dir, keyFile)
				must(os.Rename(path, path+".real"))
				must(os.Symlink(path+".real", path))
			}, "symbolic link",
		},
		"key is a directory": {
			func(c *Config) {
				path := filepath.Join(c.Dir, keyFile)
				must(os.Remove(path))
				must(os.Mkdir(path, 0o700))
			}, "regular file",
		},
		"a file in its place": {
			func(c *Config) {
				must(os.RemoveAll(filepath.Join(c.Dir, RootFolder)))
				write(t, filepath.Join(c.Dir, RootFolder), "")
			}, "not a directory",
		},
		"a leaf": {func(c *Config) { replaceByLeaf(t, c.Dir) }, "not the certificate of a certificate authority"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			open(t, cfg)
			tc.change(&cfg)
			_, err := Open(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error quotes the key: %v", err)
			}
		})
	}
}

func pemBlock(kind, content string) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(content)})
}

// replaceByLeaf replaces the root by a matching key and certificate that is not a certificate authority.
func replaceByLeaf(t *testing.T, dir string) {
	t.Helper()
	key := catest.Key(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := keys.Encode(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, RootFolder, keyName), string(text))
	write(t, filepath.Join(dir, RootFolder, certName), string(encodeCertificate(der)))
}

func TestGenerationChangesWithTheBundle(t *testing.T) {
	cfg := config(t)
	open(t, cfg)
	number := func(roots ...string) uint64 {
		t.Helper()
		n, err := Generation(t.Context(), fileio.FS{}, cfg.Dir, roots)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i, step := range []struct {
		roots []string
		want  uint64
	}{{[]string{"a"}, 1}, {[]string{"a"}, 1}, {[]string{"a", "b"}, 2}, {[]string{"a"}, 3}, {[]string{"a"}, 3}} {
		if got := number(step.roots...); got != step.want {
			t.Errorf("step %d: generation %d, want %d", i, got, step.want)
		}
	}
	write(t, filepath.Join(cfg.Dir, bundleName), "{")
	if _, err := Generation(t.Context(), fileio.FS{}, cfg.Dir, []string{"a"}); err == nil || !strings.Contains(err.Error(), bundleName) {
		t.Errorf("damaged state: got %v", err)
	}
}
