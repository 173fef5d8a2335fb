package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
)

func TestARotationWaitsForTheMeshAtEachGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.run(t)()
		first := f.bundle().Roots
		f.do(t, caapi.Command{Action: caapi.Rotate, Reason: "test"})
		s := f.waits(t, rotation.Gate)
		if len(f.bundle().Roots) != 2 || f.bundle().Generation != 2 || s.Lagging.Total != 1 || s.Lagging.First[0].Name != workload.Name {
			t.Fatalf("bundle %d with %d roots, lagging %+v", f.bundle().Generation, len(f.bundle().Roots), s.Lagging)
		}
		if len(s.Roots) != 2 {
			t.Errorf("the status has %d roots of the bundle", len(s.Roots))
		}
		if f.cfg.Authority.ID() != 1 {
			t.Error("issues from a signer that the mesh does not trust")
		}
		f.mesh.has(2, 1)
		s = f.waits(t, rotation.Renew)
		if f.cfg.Authority.ID() != 2 || s.Lagging.Total != 1 || len(f.bundle().Tainted) != 1 || f.bundle().Tainted[0][0] != 1 {
			t.Fatalf("issues from %d, lagging %+v, tainted %v", f.cfg.Authority.ID(), s.Lagging, f.bundle().Tainted)
		}
		f.mesh.has(3, 2)
		s = f.waits(t, rotation.Idle)
		if len(f.bundle().Roots) != 1 || f.bundle().Roots[0] == first[0] || len(f.bundle().Tainted) != 0 || len(s.Signers) != 1 {
			t.Errorf("ends with %d roots, tainted %v, signers %+v", len(f.bundle().Roots), f.bundle().Tainted, s.Signers)
		}
		if len(s.Roots) != 1 || s.Roots[0].PEM != f.bundle().Roots[0] {
			t.Errorf("the status has the roots %+v", s.Roots)
		}
	})
}

func TestTheGateDoesNotPassWhileHoldersAreUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.run(t)()
		f.mesh.mu.Lock()
		f.mesh.acked, f.mesh.problem = 9, errors.New("the journal is full")
		f.mesh.mu.Unlock()
		f.do(t, caapi.Command{Action: caapi.Rotate})
		if s := f.waits(t, rotation.Gate); !strings.Contains(strings.Join(s.Waits, " "), "the journal is full") {
			t.Errorf("waits %v", s.Waits)
		}
	})
}

func TestAnotherFileIsASwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.mesh.has(99, 9)
		stop := f.run(t)
		f.write(t, strings.Replace(fmt.Sprintf(selfSigned, f.dir), "name: disk", "name: other", 1))
		pass(2 * idle)
		s := f.waits(t, rotation.Idle)
		if s.Signers[0].Name != "other" || s.Signers[0].ID != 2 || f.cfg.Authority.ID() != 2 {
			t.Fatalf("signers %+v, issues from %d", s.Signers, f.cfg.Authority.ID())
		}
		stop()
		f.write(t, fmt.Sprintf(selfSigned, f.dir)) // while the ca is down
		defer f.run(t)()
		if f.cfg.Authority.ID() != 2 {
			t.Error("a start issues from a signer that nobody trusts")
		}
		pass(2 * idle)
		if s := f.waits(t, rotation.Idle); s.Signers[0].ID != 3 || s.Signers[0].Name != "disk" {
			t.Errorf("signers %+v", s.Signers)
		}
	})
}

func TestAnAbortedSwapIsNotBegunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.run(t)()
		f.write(t, strings.Replace(fmt.Sprintf(selfSigned, f.dir), "name: disk", "name: other", 1))
		f.waits(t, rotation.Gate)
		f.do(t, caapi.Command{Action: caapi.Abort})
		s := f.waits(t, rotation.Idle)
		if s.Signers[0].Name != "disk" || len(f.bundle().Roots) != 1 || f.bundle().Generation != 3 {
			t.Errorf("signers %+v, %d roots of generation %d", s.Signers, len(f.bundle().Roots), f.bundle().Generation)
		}
		if problems := strings.Join(s.Problems, " "); !strings.Contains(problems, "the signer file has signer other, and disk is in use") {
			t.Errorf("problems %q", problems)
		}
	})
}

func TestARestartGoesOnAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		stop := f.run(t)
		f.do(t, caapi.Command{Action: caapi.Rotate})
		for _, step := range []rotation.Step{rotation.Gate, rotation.Renew, rotation.Idle} {
			f.waits(t, step)
			stop()
			stop = f.run(t)
			switch f.waits(t, step); step {
			case rotation.Gate:
				f.mesh.has(2, 1)
			case rotation.Renew:
				if f.cfg.Authority.ID() != 2 {
					t.Error("issues from the signer before after a restart")
				}
				f.mesh.has(3, 2)
			}
		}
		stop()
	})
}

func TestRollbackIssuesFromTheSignerBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.run(t)()
		root := f.bundle().Roots[0]
		f.do(t, caapi.Command{Action: caapi.Rotate})
		f.waits(t, rotation.Gate)
		f.mesh.has(9, 1)
		f.waits(t, rotation.Renew)
		f.mesh.has(9, 2)
		f.do(t, caapi.Command{Action: caapi.Rollback})
		f.waits(t, rotation.Renew)
		if f.cfg.Authority.ID() != 1 {
			t.Fatalf("issues from %d", f.cfg.Authority.ID())
		}
		f.mesh.has(9, 1)
		f.waits(t, rotation.Idle)
		if b := f.bundle(); len(b.Roots) != 1 || b.Roots[0] != root {
			t.Errorf("%d roots", len(b.Roots))
		}
	})
}

func TestAnAcceptedHolderIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.run(t)()
		f.do(t, caapi.Command{Action: caapi.Rotate})
		f.waits(t, rotation.Gate)
		var refused *RefusedError
		if err := f.driver.Do(t.Context(), caapi.Command{Action: caapi.Accept, Holder: "shop/wbe-1"}); !errors.As(err, &refused) {
			t.Errorf("a misspelt holder: %v", err)
		}
		f.do(t, caapi.Command{Action: caapi.Accept, Holder: workload.Name})
		f.waits(t, rotation.Idle)
	})
}

func TestIntermediatesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.mesh.has(99, 1)
		f.cfg.Idle = time.Hour
		stop := f.run(t)
		issuer := func() *signer.Authorities { a, _ := f.cfg.Authority.Guard().Authorities(); return a }
		before, roots := issuer(), f.bundle().Roots
		pass(4 * 24 * time.Hour)
		if issuer() != before {
			t.Error("renewed before half of its life")
		}
		pass(2 * 24 * time.Hour)
		now := issuer()
		if now == before || !now.NotAfter.After(before.NotAfter) {
			t.Error("not renewed at half of its life")
		}
		if !slices.Equal(f.bundle().Roots, roots) {
			t.Error("the root has changed with it")
		}
		stop()
		defer f.run(t)()
		if !issuer().Intermediates[0].Equal(now.Intermediates[0]) {
			t.Error("a restart does not find the renewed one")
		}
	})
}

func TestARootIsRotatedBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.write(t, strings.Replace(fmt.Sprintf(selfSigned, f.dir), "8760h", "480h", 1))
		f.mesh.has(99, 9)
		f.cfg.Idle = time.Hour
		defer f.run(t)()
		pass(16 * 24 * time.Hour)
		if s := f.driver.Status(); s.Signers[0].ID != 1 {
			t.Fatalf("rotated early: %+v", s)
		}
		pass(26 * time.Hour)
		if s := f.waits(t, rotation.Idle); s.Signers[0].ID != 2 {
			t.Errorf("not rotated: %+v", s)
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
		"a state of something else": {before: func(t *testing.T, f *fixture) {
			testkit.WriteFile(t, filepath.Join(f.dir, "state.json"), []byte("{}"))
		}, says: "not what a ca wrote"},
		"a lost key": {before: func(t *testing.T, f *fixture) {
			f.open(t).Close()
			testkit.NoError(t, os.RemoveAll(filepath.Join(f.dir, "keys")))
		}, says: "signer-1-intermediate-1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if tc.before != nil {
				tc.before(t, f)
				f.cfg.Authority = authority.New(f.published)
			}
			if tc.file != nil {
				f.write(t, tc.file(fmt.Sprintf(selfSigned, f.dir)))
			}
			d, err := Open(t.Context(), f.cfg)
			if err == nil {
				d.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
			if err != nil && f.cfg.Authority.ID() != 0 {
				t.Error("the signer is in use")
			}
		})
	}
}

// A file that becomes bad changes nothing.
func TestABadFileIsToldAndChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.run(t)()
		f.write(t, "{")
		pass(2 * idle)
		if s := f.driver.Status(); s.Step != string(rotation.Idle) || !strings.Contains(strings.Join(s.Problems, " "), "is no Signer") {
			t.Errorf("got %+v", s)
		}
		f.write(t, fmt.Sprintf(selfSigned, f.dir))
		pass(2 * idle)
		if err := f.driver.Problem(); err != nil {
			t.Errorf("after it was restored: %v", err)
		}
	})
}

// The state is public: it may be read by whoever sees the ca's objects.
func TestTheStateHasNoKey(t *testing.T) {
	f := newFixture(t)
	f.open(t)
	r, err := f.cfg.Record.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(r.Data); err != nil || strings.Contains(string(r.Data), "PRIVATE KEY") {
		t.Errorf("state %s, %v", r.Data, err)
	}
}

func TestOrdersThatAreWrong(t *testing.T) {
	f := newFixture(t)
	f.open(t)
	for says, c := range map[string]caapi.Command{
		`action: "rotat" is unknown`:   {Action: "rotat"},
		"file: is empty":               {Action: caapi.Swap},
		"of this file is in use":       {Action: caapi.Swap, File: fmt.Sprintf(selfSigned, f.dir)},
		"no rotation is under way":     {Action: caapi.Abort},
		"holder: is required":          {Action: caapi.Accept},
		"reason: it has 257 bytes":     {Action: caapi.Rotate, Reason: strings.Repeat("x", maxReason+1)},
		"file: is no Signer":           {Action: caapi.Swap, File: "a: b"},
		"no rotation is under way; ro": {Action: caapi.Compromised},
	} {
		if err := f.driver.Do(t.Context(), c); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: got %v, want %q", c, err, says)
		}
	}
}

// A file that somebody has spoilt while the ca runs is told, and no order hangs on it.
func TestASpoiltRecordIsToldAndHangsNothing(t *testing.T) {
	f := newFixture(t)
	f.open(t)
	testkit.WriteFile(t, filepath.Join(f.dir, "state.json"), []byte("{}"))
	if err := f.driver.Do(t.Context(), caapi.Command{Action: caapi.Rotate}); !errors.Is(err, ErrRecord) {
		t.Errorf("an order: %v", err)
	}
	if s := f.driver.Status(); s.Step != string(rotation.Idle) || !strings.Contains(strings.Join(s.Problems, " "), "not what a ca wrote") {
		t.Errorf("status %+v", s)
	}
}

// A replica that has not noticed yet that another one takes the steps publishes nothing of an earlier state.
func TestRootsOfAnEarlierStateAreNotPublished(t *testing.T) {
	f := newFixture(t)
	f.open(t)
	own, _, err := f.driver.Own()
	testkit.NoError(t, err)
	if _, err := f.driver.Number(t.Context(), own.Roots, own.Roots); err != nil {
		t.Fatal(err)
	}
	testkit.NoError(t, f.driver.update(t.Context(), func(doc document) (document, error) {
		doc.Next = &rotation.Signer{ID: 2, Name: "next", Roots: []string{"another root"}}
		doc.Step = rotation.Trust
		return doc, nil
	}))
	if _, err := f.driver.Number(t.Context(), own.Roots, own.Roots); !errors.Is(err, errStale) {
		t.Errorf("got %v", err)
	}
}

// A signer that cannot be opened is a problem while a rotation leads to it, and no longer.
func TestTheProblemOfAnAbortedSwapIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.run(t)()
		file := strings.NewReplacer("name: disk", "name: other", "{directory: {dir: %s/keys}}", "{secret: {namespace: a, name: b}}").Replace(
			selfSigned)
		f.do(t, caapi.Command{Action: caapi.Swap, File: file})
		s := f.waits(t, rotation.Prepare)
		if problems := strings.Join(s.Problems, " "); !strings.Contains(problems, "needs Kubernetes") {
			t.Fatalf("problems %q", problems)
		}
		f.do(t, caapi.Command{Action: caapi.Abort})
		if problems := strings.Join(f.waits(t, rotation.Idle).Problems, " "); strings.Contains(problems, "needs Kubernetes") {
			t.Errorf("problems %q", problems)
		}
	})
}
