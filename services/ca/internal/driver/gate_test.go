package driver

import (
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/store"
)

// breakable is a signer that can be broken.
type breakable struct {
	*held.Signer
	fault *atomic.Pointer[func(context.Context) error]
}

func (b breakable) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	if f := b.fault.Load(); f != nil {
		if err := (*f)(ctx); err != nil {
			return nil, err
		}
	}
	return b.Signer.Issue(ctx, r)
}

const ownRoot = "{apiVersion: ca.fairlead.dev/v1, kind: Signer, name: vault, root: {ttl: 8760h}}"

// breakableRoots gives the fixture's driver signers of kind root that break as fault says.
func (f *fixture) breakableRoots(fault *atomic.Pointer[func(context.Context) error]) {
	f.cfg.Env.OpenRoot = func(id uint64, ttl time.Duration) (signer.Issuer, error) {
		root, err := store.Open(context.Background(), store.Config{Dir: filepath.Join(f.dir, fmt.Sprint("root-", id)),
			TrustDomain: f.cfg.Env.TrustDomain, RootTTL: ttl, Now: time.Now()})
		if err != nil {
			return nil, err
		}
		return breakable{held.New(root.Certificate, root.Key), fault}, nil
	}
}

// signerFaults are what happens to a signer that worked.
var signerFaults = map[string]struct {
	fault func(context.Context) error
	says  string
}{
	"sealed": {func(context.Context) error { return signer.Errorf(signer.Away, "Vault is sealed") }, "Vault is sealed"},
	"its token was removed": {func(context.Context) error { return signer.Errorf(signer.Refused, "permission denied") },
		"permission denied"},
	"slower than 30 s": {func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(31 * time.Second):
			return nil
		}
	}, "not ready within 30s"},
}

func TestTheGateHoldsForASignerThatBreaks(t *testing.T) {
	for name, tc := range signerFaults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				var fault atomic.Pointer[func(context.Context) error]
				f.breakableRoots(&fault)
				defer f.run(t)()
				// In prepare.
				fault.Store(&tc.fault)
				f.do(t, caapi.Command{Action: caapi.Swap, File: ownRoot})
				pass(2 * time.Minute)
				if s := f.waits(t, rotation.Prepare); !strings.Contains(strings.Join(s.Waits, " "), tc.says) || s.Signers[1].Problem == "" {
					t.Fatalf("waits %v, signers %+v", s.Waits, s.Signers)
				}
				fault.Store(nil)
				pass(time.Minute)
				f.waits(t, rotation.Gate)
				// At the gate, for the mesh trusts it only when it is broken again.
				fault.Store(&tc.fault)
				pass(2 * time.Minute)
				f.mesh.has(2, 1)
				s := f.waits(t, rotation.Gate)
				if says := strings.Join(s.Waits, " "); !strings.Contains(says, "signer vault issues no certificates now") ||
					!strings.Contains(says, tc.says) {
					t.Fatalf("waits %v", s.Waits)
				}
				fault.Store(nil)
				pass(time.Minute)
				if s := f.waits(t, rotation.Renew); f.cfg.Authority.ID() != 2 || s.Lagging.Total != 1 {
					t.Fatalf("issues from %d, %+v", f.cfg.Authority.ID(), s.Lagging)
				}
				// After the gate, it is an operator's matter: the way back needs nothing of the broken signer.
				fault.Store(&tc.fault)
				f.do(t, caapi.Command{Action: caapi.Rollback})
				f.waits(t, rotation.Idle)
				if f.cfg.Authority.ID() != 1 || len(f.bundle().Roots) != 1 {
					t.Errorf("issues from %d, %d roots", f.cfg.Authority.ID(), len(f.bundle().Roots))
				}
			})
		})
	}
}

func TestASwapToABrokenSignerIsAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var fault atomic.Pointer[func(context.Context) error]
		f.breakableRoots(&fault)
		defer f.run(t)()
		root := f.bundle().Roots[0]
		f.do(t, caapi.Command{Action: caapi.Swap, File: ownRoot})
		f.waits(t, rotation.Gate)
		sealed := signerFaults["sealed"].fault
		fault.Store(&sealed)
		pass(2 * time.Minute)
		f.mesh.has(2, 1)
		f.waits(t, rotation.Gate)
		f.do(t, caapi.Command{Action: caapi.Abort})
		f.waits(t, rotation.Idle)
		if b := f.bundle(); f.cfg.Authority.ID() != 1 || len(b.Roots) != 1 || b.Roots[0] != root {
			t.Errorf("issues from %d, %d roots", f.cfg.Authority.ID(), len(b.Roots))
		}
	})
}
