// Package kms is the KeyManager of keys that never leave a PKCS#11 token or the key service of a cloud. The helper
// program ca-kms, a child process, speaks to them, by the library of Smallstep's KMS: modules of PKCS#11 are shared
// libraries of vendors, which the ca, a static program, cannot load, and whose calls may hang or crash. A helper that
// hangs, ends, or has lost its session is replaced by a new one, which logs in again.
package kms

import (
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys"
	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

const (
	// pause is the time after a helper that could not open the keys, in which no other is started.
	pause = time.Second
	// idle is how long a helper is kept that is asked nothing: nobody may have use for the keys any more.
	idle = 10 * time.Minute
	// makeTimeout bounds the making of a key: tokens may take a minute for one of RSA-4096.
	makeTimeout = 2 * time.Minute
	// maxText bounds what is repeated of a helper's words, in bytes.
	maxText = 512
)

// Manager is a signer.KeyManager. Its errors about token and service are of type *signer.Error. Its helper ends with
// Run, or when it is asked nothing for ten minutes.
type Manager struct {
	cfg  Config
	deps signer.Deps
	path string
	salt []byte

	// opening is held while a helper is started.
	opening sync.Mutex
	mu      sync.Mutex
	helper  *helper
	closed  bool
	// failed is why the last helper could not open the keys, at the time failedAt.
	failed   error
	failedAt time.Time
	// refusedPIN is the digest of the PIN that the token refused.
	refusedPIN []byte
}

var _ signer.KeyManager = (*Manager)(nil)

// New returns the KeyManager of a token or service, which it asks nothing yet.
func New(cfg Config, d signer.Deps) (*Manager, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, deps: d, path: cfg.Helper, salt: make([]byte, 32)}
	m.cfg.Timeout.Duration = cmp.Or(cfg.Timeout.Duration, defaultTimeout)
	if m.path == "" {
		own, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("helper: is required, because the ca does not know where its own program is: %w", err)
		}
		m.path = filepath.Join(filepath.Dir(own), HelperName)
	}
	_, err := rand.Read(m.salt)
	return m, err
}

// Run waits until ctx ends, and then ends the helper. Later calls fail.
func (m *Manager) Run(ctx context.Context) error {
	<-ctx.Done()
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	m.closed = true
	last := m.helper
	m.helper = nil
	m.mu.Unlock()
	if last != nil {
		last.stop()
	}
	return nil
}

// Shared implements signer.KeyManager.
func (m *Manager) Shared() bool { return m.cfg.Shared || m.cfg.Type != PKCS11 }

// current returns the helper that has opened the keys, nil if there is none, and the error of the last if none should
// be started yet.
func (m *Manager) current() (*helper, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, signer.Errorf(signer.Away, "%s: the ca ends", m.name())
	case m.helper != nil && !m.helper.ended():
		return m.helper, nil
	case m.failed != nil && m.deps.Clock.Now().Sub(m.failedAt) < pause:
		return nil, m.failed
	}
	return nil, nil
}

// open returns a helper that has opened the keys, and starts one if there is none.
func (m *Manager) open(ctx context.Context) (*helper, error) {
	if h, err := m.current(); h != nil || err != nil {
		return h, err
	}
	m.opening.Lock()
	defer m.opening.Unlock()
	if h, err := m.current(); h != nil || err != nil {
		return h, err
	}
	h, err := m.start(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.helper, m.failed, m.refusedPIN = h, nil, nil
		m.deps.Log.Info("keys opened", "type", m.cfg.Type, "uri", m.cfg.URI)
		go m.dropIdle(h)
		return h, nil
	}
	m.failed, m.failedAt = err, m.deps.Clock.Now()
	return nil, err
}

func (m *Manager) start(ctx context.Context) (*helper, error) {
	// Who waits longest decides, not who came first: a caller that gives up must not end a login halfway, which could
	// count as an attempt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Timeout.Duration)
	defer cancel()
	h, err := startHelper(ctx, m.path, m.cfg.Type)
	if err != nil {
		return nil, m.explain(err)
	}
	m.mu.Lock()
	store := &wire.Store{Type: m.cfg.Type, URI: m.cfg.URI, Module: m.cfg.Module, PINFile: m.cfg.PINFile, Salt: m.salt,
		RefusedPIN: m.refusedPIN}
	m.mu.Unlock()
	answer, err := h.call(ctx, wire.Request{Op: wire.Open, Store: store})
	if err == nil && answer.Error != nil {
		if answer.Error.RefusedPIN != nil {
			m.mu.Lock()
			m.refusedPIN = answer.Error.RefusedPIN
			m.mu.Unlock()
		}
		err = answer.Error
	}
	if err != nil {
		h.stop()
		return nil, m.explain(err)
	}
	return h, nil
}

// ask has a helper do a request. again says that it may be done twice: then a new helper tries once more if the first
// has ended or lost its session. Modules of tokens that were removed may say that there is no key; that counts only if
// it comes from a session that was opened for the request.
func (m *Manager) ask(ctx context.Context, r wire.Request, again bool) (*wire.Response, error) {
	timeout := m.cfg.Timeout.Duration
	if r.Op == wire.Make {
		timeout = makeTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer in %s", timeout))
	defer cancel()
	began := time.Now()
	for {
		if ctx.Err() != nil {
			return nil, m.explain(context.Cause(ctx))
		}
		h, err := m.open(ctx)
		if err != nil {
			return nil, err
		}
		answer, err := h.call(ctx, r)
		if err == nil && answer.Error != nil {
			err = answer.Error
		}
		if err == nil {
			return answer, nil
		}
		lost := errors.Is(err, errEnded)
		if e, ok := errors.AsType[*wire.Error](err); ok {
			absent := e.Code == wire.NoKey && m.cfg.Type == PKCS11 && h.started.Before(began)
			if lost = e.Code == wire.Lost || absent; lost {
				m.drop(h)
			}
		}
		if !lost || !again {
			return nil, m.explain(err)
		}
		m.deps.Log.Info("opening the keys again", "type", m.cfg.Type, "uri", m.cfg.URI, "cause", m.explain(err))
		again = false
	}
}

// drop replaces a helper whose session may be lost. It ends when its other requests have been answered.
func (m *Manager) drop(h *helper) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.helper == h {
		m.helper = nil
		go h.retire()
	}
}

// dropIdle drops a helper that is asked nothing for a while. The next request starts another.
func (m *Manager) dropIdle(h *helper) {
	for {
		before := h.asked()
		select {
		case <-h.done:
			return
		case <-m.deps.Clock.After(idle):
		}
		if h.asked() == before {
			m.drop(h)
			return
		}
	}
}

// name names the keys in errors.
func (m *Manager) name() string { return fmt.Sprintf("keys at %.200q", m.cfg.URI) }

// explain makes an error of the helper, or about it, one of the seam's.
func (m *Manager) explain(err error) error {
	said, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return signer.Errorf(signer.Away, "%s: %w", m.name(), &bounded{err})
	}
	cause := error(&bounded{errors.New(said.Text)})
	switch said.Code {
	case wire.NoKey:
		return fmt.Errorf("%s: %w: %w", m.name(), cause, signer.ErrNoKey)
	case wire.KeyExists:
		return fmt.Errorf("%s: %w: %w", m.name(), cause, signer.ErrKeyExists)
	case wire.Refused:
		return signer.Errorf(signer.Refused, "%s: %w", m.name(), cause)
	case wire.Unsuitable:
		return signer.Errorf(signer.Unsuitable, "%s: %w", m.name(), cause)
	case wire.Busy:
		return signer.Errorf(signer.Busy, "%s: %w", m.name(), cause)
	}
	return signer.Errorf(signer.Away, "%s: %w", m.name(), cause)
}

// bounded is an error whose text is cut.
type bounded struct{ error }

func (b *bounded) Error() string { return fmt.Sprintf("%.*s", maxText, b.error.Error()) }
func (b *bounded) Unwrap() error { return b.error }

// Make implements signer.KeyManager. If the helper ends meanwhile, the key may have been made.
func (m *Manager) Make(ctx context.Context, name string, a signer.Algorithm) (crypto.Signer, error) {
	if err := errors.Join(keys.CheckName(name), keys.CheckAlgorithm(a)); err != nil {
		return nil, err
	}
	// A session of before the token was removed and put back could miss the key, and a second one would be made. What
	// else is wrong with objects of the name, the helper says when it makes the key.
	_, err := m.ask(ctx, wire.Request{Op: wire.Find, Key: m.cfg.Prefix + name}, true)
	if err == nil {
		return nil, fmt.Errorf("%s: key %q: %w", m.name(), m.cfg.Prefix+name, signer.ErrKeyExists)
	}
	if e, ok := errors.AsType[*signer.Error](err); ok && e.Fault != signer.Refused {
		return nil, err
	}
	answer, err := m.ask(ctx, wire.Request{Op: wire.Make, Key: m.cfg.Prefix + name, Algorithm: string(a)}, false)
	if err != nil {
		return nil, err
	}
	return m.key(name, answer)
}

// Find implements signer.KeyManager.
func (m *Manager) Find(ctx context.Context, name string) (crypto.Signer, error) {
	if err := keys.CheckName(name); err != nil {
		return nil, err
	}
	answer, err := m.ask(ctx, wire.Request{Op: wire.Find, Key: m.cfg.Prefix + name}, true)
	if err != nil {
		return nil, err
	}
	return m.key(name, answer)
}

// Delete implements signer.KeyManager.
func (m *Manager) Delete(ctx context.Context, name string) error {
	if err := keys.CheckName(name); err != nil {
		return err
	}
	_, err := m.ask(ctx, wire.Request{Op: wire.Delete, Key: m.cfg.Prefix + name}, true)
	if errors.Is(err, signer.ErrNoKey) {
		return nil
	}
	return err
}

func (m *Manager) key(name string, answer *wire.Response) (crypto.Signer, error) {
	public, err := x509.ParsePKIXPublicKey(answer.PublicKey)
	if err != nil || answer.URI == "" {
		return nil, signer.Errorf(signer.Lied, "%s: the public key of %q cannot be read", m.name(), m.cfg.Prefix+name)
	}
	if err := keys.CheckPublic(public); err != nil {
		return nil, signer.Errorf(signer.Refused, "%s: %q %w", m.name(), m.cfg.Prefix+name, err)
	}
	return &key{m: m, uri: answer.URI, public: public}, nil
}

// key is a crypto.Signer whose private half the helper uses.
type key struct {
	m      *Manager
	uri    string
	public crypto.PublicKey
}

// Public implements crypto.Signer.
func (k *key) Public() crypto.PublicKey { return k.public }

// Sign implements crypto.Signer; the token has its own randomness.
func (k *key) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if opts == nil || opts.HashFunc() == 0 || opts.HashFunc().Size() != len(digest) {
		return nil, signer.Errorf(signer.Unsuitable, "%s: sign a digest of %d bytes: its hash must be known", k.m.name(), len(digest))
	}
	r := wire.Request{Op: wire.Sign, URI: k.uri, Digest: digest, Hash: uint(opts.HashFunc())}
	if pss, ok := opts.(*rsa.PSSOptions); ok {
		r.PSS, r.SaltLength = true, pss.SaltLength
	}
	answer, err := k.m.ask(context.Background(), r, true)
	if err != nil {
		return nil, err
	}
	return answer.Signature, nil
}
