package inuse

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kinds"
	"fairlead.dev/services/ca/internal/trustbundle"
)

// fixture is a ca's directory with a signer file.
type fixture struct {
	dir string
	cfg Config
}

const selfSigned = `apiVersion: ca.fairlead.dev/v1
kind: Signer
name: disk
intermediate:
  keys: {directory: {dir: %s/keys}}
  ttl: 240h
  selfSigned: {ttl: 8760h}
`

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{dir: t.TempDir()}
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca")
	f.cfg = Config{
		File: filepath.Join(f.dir, "signer.yaml"), Record: record.NewFile(filepath.Join(f.dir, "state.json")), Log: testkit.Logger(t),
		Authority: authority.New(trustbundle.NewPublisher("cluster.local", nil)),
		Env: kinds.Env{
			Deps:     signer.Deps{TrustDomain: id.TrustDomain(), Clock: clock.Real(), Log: testkit.Logger(t)},
			Identity: id, DNSNames: []string{"ca.istio-system.svc"}, LeafTTL: 24 * time.Hour,
		},
	}
	f.write(t, fmt.Sprintf(selfSigned, f.dir))
	return f
}

func (f *fixture) write(t *testing.T, text string) {
	t.Helper()
	testkit.WriteFile(t, f.cfg.File, []byte(text))
}

func (f *fixture) open(t *testing.T) *Keeper {
	t.Helper()
	k, err := Open(t.Context(), f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func TestASecondStartFindsTheSameSigner(t *testing.T) {
	f := newFixture(t)
	k := f.open(t)
	first, _, err := k.Roots()
	if err != nil || len(first) != 1 {
		t.Fatalf("%d roots, %v", len(first), err)
	}
	k.Close()
	k = f.open(t)
	again, _, err := k.Roots()
	if err != nil || again[0] != first[0] {
		t.Errorf("another root after a restart: %v", err)
	}
	if k.State().Current.ID != 1 || f.cfg.Authority.ID() != 1 {
		t.Errorf("signer %d in use", f.cfg.Authority.ID())
	}
}

func TestIntermediatesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		k := f.open(t)
		before, _ := k.opened.Guard.Authorities()
		roots, _, _ := k.Roots()
		stop := testkit.Background(t, k.Run)
		time.Sleep(4 * 24 * time.Hour)
		if now, _ := k.opened.Guard.Authorities(); now != before {
			t.Error("renewed before half of its life")
		}
		time.Sleep(2 * 24 * time.Hour)
		now, _ := k.opened.Guard.Authorities()
		if now == before || !now.NotAfter.After(before.NotAfter) {
			t.Error("not renewed at half of its life")
		}
		if after, _, _ := k.Roots(); after[0] != roots[0] {
			t.Error("the root has changed with it")
		}
		stop()
		again := f.open(t)
		if found, _ := again.opened.Guard.Authorities(); !found.Intermediates[0].Equal(now.Intermediates[0]) {
			t.Error("a restart does not find the renewed one")
		}
	})
}

func TestBadSignerFilesAndStates(t *testing.T) {
	for name, tc := range map[string]struct {
		file   func(text string) string
		before func(t *testing.T, f *fixture)
		says   string
	}{
		"empty":         {file: func(string) string { return " " }, says: "is empty"},
		"no YAML":       {file: func(string) string { return "{" }, says: "is no Signer"},
		"unknown field": {file: func(s string) string { return s + "vualt: {}\n" }, says: `unknown field "vualt"`},
		"another kind": {file: func(s string) string { return strings.Replace(s, "kind: Signer", "kind: Secret", 1) },
			says: "write ca.fairlead.dev/v1 and Signer"},
		"a bad name": {file: func(s string) string { return strings.Replace(s, "name: disk", "name: My Disk", 1) }, says: "name: "},
		"two signers": {file: func(s string) string { return s + "caCerts: {directory: /etc/cacerts}\n" },
			says: "caCerts, intermediate: are set together"},
		"no signer": {file: func(s string) string { return s[:strings.Index(s, "intermediate")] }, says: "none of caCerts, "},
		"a key of an unknown kind": {file: func(s string) string { return strings.Replace(s, "  ttl", "  algorithm: DSA\n  ttl", 1) },
			says: `intermediate.algorithm: "DSA" is unknown`},
		"an intermediate that ends too soon": {file: func(s string) string { return strings.Replace(s, "240h", "47h", 1) },
			says: "at least 48h0m0s"},
		"a root that ends too soon": {file: func(s string) string { return strings.Replace(s, "8760h", "24h", 1) },
			says: "at least 48h0m0s"},
		"a Secret outside of Kubernetes": {file: func(s string) string {
			return strings.Replace(s, "{directory:", "{secret: {namespace: istio-system, name: keys}} # {", 1)
		}, says: "needs Kubernetes"},
		"another signer": {before: func(t *testing.T, f *fixture) { f.open(t).Close() },
			file: func(s string) string { return strings.Replace(s, "name: disk", "name: other", 1) },
			says: "certificates of signer disk are in use"},
		"a state of something else": {before: func(t *testing.T, f *fixture) {
			testkit.WriteFile(t, filepath.Join(f.dir, "state.json"), []byte("{}"))
		}, says: "not what a ca wrote"},
		"a lost key": {before: func(t *testing.T, f *fixture) {
			f.open(t).Close()
			if err := os.RemoveAll(filepath.Join(f.dir, "keys")); err != nil {
				t.Fatal(err)
			}
		}, says: "signer-1-intermediate-1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if tc.before != nil {
				tc.before(t, f)
			}
			if tc.file != nil {
				f.write(t, tc.file(fmt.Sprintf(selfSigned, f.dir)))
			}
			k, err := Open(t.Context(), f.cfg)
			if err == nil {
				k.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
			if err != nil && f.cfg.Authority.ID() != 0 && tc.before == nil {
				t.Error("the signer is in use")
			}
		})
	}
}

func TestAChangedFileIsToldAndChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		k := f.open(t)
		stop := testkit.Background(t, k.Run)
		defer stop()
		f.write(t, strings.Replace(fmt.Sprintf(selfSigned, f.dir), "name: disk", "name: other", 1))
		time.Sleep(2 * period)
		if err := k.Problem(); err == nil || !strings.Contains(err.Error(), "restore the file") || f.cfg.Authority.ID() != 1 {
			t.Errorf("got %v", err)
		}
		f.write(t, fmt.Sprintf(selfSigned, f.dir))
		time.Sleep(2 * period)
		if err := k.Problem(); err != nil {
			t.Errorf("after it was restored: %v", err)
		}
	})
}

// The state is public: it may be read by whoever sees the ca's objects.
func TestTheStateHasNoKey(t *testing.T) {
	f := newFixture(t)
	f.open(t)
	r, err := f.cfg.Record.Load()
	if err != nil {
		t.Fatal(err)
	}
	var state rotation.State
	if err := json.Unmarshal(r.Data, &state); err != nil || strings.Contains(string(r.Data), "PRIVATE KEY") {
		t.Errorf("state %s, %v", r.Data, err)
	}
}
