package kuberequest

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/signer"
)

const (
	// rootsPeriod is the time between two readings of roots, readTimeout bounds one.
	rootsPeriod = 10 * time.Second
	readTimeout = 5 * time.Second
	// Bounds of roots.
	maxRootBytes = 256 << 10
	maxRoots     = 64
	minRSABits   = 2048
	// staleBefore the end of a certificate it no longer counts that the last leaf was signed with it.
	staleBefore = 15 * time.Minute
	// learnPeriod is how often a signer may change its intermediates and be noticed.
	learnPeriod = time.Minute
)

// trust is what verifies the leaves of a target.
type trust struct {
	mu    sync.Mutex
	roots []*x509.Certificate
	pool  *x509.CertPool
	// problem is why roots could not be read; those read last stay.
	problem *signer.Error
	// path is what the last leaf was signed with: intermediates, and then the root. Once it is stale it does not count.
	path    []*x509.Certificate
	learned time.Time
	stale   bool
}

// trusted returns the roots, or why there are none.
func (t *trust) trusted() ([]*x509.Certificate, *x509.CertPool, *signer.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.roots == nil {
		if t.problem != nil {
			return nil, nil, t.problem
		}
		return nil, nil, signer.Errorf(signer.Away, "the signer's roots are not read yet; ask again")
	}
	return t.roots, t.pool, nil
}

// failing is why the roots could not be read last; nil if they could.
func (t *trust) failing() *signer.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.problem
}

// set takes new roots, or why there are none. It tells whether the roots, or the reason, have changed.
func (t *trust) set(roots []*x509.Certificate, problem *signer.Error) (changed, news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if problem != nil {
		news = t.problem == nil || t.problem.Error() != problem.Error()
		t.problem = problem
		return false, news
	}
	news = t.problem != nil
	t.problem = nil
	if slices.EqualFunc(roots, t.roots, (*x509.Certificate).Equal) {
		return false, news
	}
	t.roots, t.pool = roots, x509.NewCertPool()
	for _, r := range roots {
		t.pool.AddCert(r)
	}
	if n := len(t.path); n > 0 && !slices.ContainsFunc(roots, t.path[n-1].Equal) {
		t.path = nil
	}
	return true, news
}

// learn remembers what has signed a leaf that Check has passed. It tells whether that has changed.
func (t *trust) learn(chain []*x509.Certificate, pool *x509.CertPool, now time.Time) bool {
	t.mu.Lock()
	known := t.path
	t.mu.Unlock()
	if len(known) == len(chain) && slices.EqualFunc(known[:len(known)-1], chain[1:], (*x509.Certificate).Equal) &&
		chain[len(chain)-1].CheckSignatureFrom(known[len(known)-1]) == nil {
		return false // the usual case, at the price of one signature
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	paths, err := chain[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path != nil && now.Sub(t.learned) < learnPeriod {
		return false
	}
	t.path, t.learned, t.stale = paths[0][1:], now, false
	return true
}

// age says whether the path has just become stale, or is no longer: then the signer has other certificates by now, or
// needs some, and nobody knows them before it has been asked.
func (t *trust) age(now time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stale := slices.ContainsFunc(t.path, func(c *x509.Certificate) bool { return c.NotAfter.Sub(now) < staleBefore })
	changed = stale != t.stale
	t.stale = stale
	return changed
}

// authorities are those of all targets together.
type authorities struct {
	changed notify.Notifier
	current atomic.Pointer[signer.Authorities]
}

// Authorities implements signer.Issuer. Intermediates are those of requests without a profile.
func (a *authorities) Authorities() (*signer.Authorities, <-chan struct{}) {
	changed := a.changed.Changed()
	return a.current.Load(), changed
}

// announce puts the authorities of all targets together. The validity is that of the signer of requests without a
// profile, or of all if there is none: that of a profile bounds its own leaves alone.
func (i *Issuer) announce() {
	i.announcing.Lock()
	defer i.announcing.Unlock()
	var a signer.Authorities
	main := slices.ContainsFunc(i.targets, func(t *target) bool { return t.Profile == "" })
	for _, t := range i.targets {
		roots, intermediates := t.announced()
		for _, r := range roots {
			if !slices.ContainsFunc(a.Roots, r.Equal) {
				a.Roots = append(a.Roots, r)
			}
		}
		if main && t.Profile != "" || len(roots) == 0 {
			continue
		}
		if t.Profile == "" {
			a.Intermediates = intermediates
		}
		from, until := t.validity()
		if a.NotAfter.IsZero() || until.Before(a.NotAfter) {
			a.NotAfter = until
		}
		if from.After(a.NotBefore) {
			a.NotBefore = from
		}
	}
	if len(a.Roots) == 0 {
		return
	}
	i.current.Store(&a)
	i.changed.Notify()
}

// announced are the roots, and the intermediates if they are known.
func (t *trust) announced() (roots, intermediates []*x509.Certificate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.path); n > 1 && !t.stale {
		intermediates = t.path[:n-1]
	}
	return t.roots, intermediates
}

// validity is that of what the last leaf was signed with. Before the first leaf it is that of the roots together: a
// bundle may have one that ends soon, and one that follows it.
func (t *trust) validity() (from, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := t.path
	if t.stale {
		path = nil
	}
	for _, c := range path {
		if until.IsZero() || c.NotAfter.Before(until) {
			until = c.NotAfter
		}
		if c.NotBefore.After(from) {
			from = c.NotBefore
		}
	}
	if len(path) > 0 {
		return from, until
	}
	for n, c := range t.roots {
		if c.NotAfter.After(until) {
			until = c.NotAfter
		}
		if n == 0 || c.NotBefore.Before(from) {
			from = c.NotBefore
		}
	}
	return from, until
}

// rootsRead is what was read of one source, which may be that of several targets.
type rootsRead struct {
	roots   []*x509.Certificate
	problem *signer.Error
}

// followRoots reads the roots of all targets again and again until ctx ends.
func (i *Issuer) followRoots(ctx context.Context) {
	for {
		changed := false
		read := map[string]rootsRead{}
		for _, t := range i.targets {
			from := t.Roots.key()
			if _, ok := read[from]; !ok {
				roots, problem := i.roots.read(ctx, t.Roots, i.deps.Clock.Now())
				read[from] = rootsRead{roots, problem}
			}
			if ctx.Err() != nil {
				return
			}
			roots, problem := read[from].roots, read[from].problem
			another, news := t.set(roots, problem)
			changed = t.age(i.deps.Clock.Now()) || another || changed
			switch {
			case problem != nil && news:
				i.deps.Log.Error("the roots of the signer are not read; those read last stay", "signer", t.Signer, "error", problem)
			case another:
				i.deps.Log.Info("roots of the signer read", "signer", t.Signer, "roots", len(roots))
			}
		}
		if changed {
			i.announce()
		}
		if !clock.Sleep(ctx, i.deps.Clock, rootsPeriod) {
			return
		}
	}
}

// rootReader reads roots where Roots says.
type rootReader struct{ api dynamic.Interface }

func (r *rootReader) read(ctx context.Context, from Roots, now time.Time) ([]*x509.Certificate, *signer.Error) {
	text, where, problem := r.text(ctx, from)
	if problem != nil {
		return nil, problem
	}
	roots, err := parseRoots(text, now)
	if err != nil {
		return nil, signer.Errorf(signer.Refused, "roots: %s: %w", where, short(err))
	}
	return roots, nil
}

func (r *rootReader) text(ctx context.Context, from Roots) (text []byte, where string, problem *signer.Error) {
	switch {
	case from.ConfigMap != nil:
		return r.entry(ctx, "ConfigMap", "configmaps", *from.ConfigMap, "root-cert.pem")
	case from.Secret != nil:
		return r.entry(ctx, "Secret", "secrets", *from.Secret, "ca.crt")
	}
	text, err := fileio.Read(from.File, maxRootBytes)
	if err != nil {
		return nil, "", signer.Errorf(signer.Refused, "roots: %w; write the signer's roots in PEM there", err)
	}
	return text, from.File, nil
}

func (r *rootReader) entry(ctx context.Context, kind, resource string, o Object, key string) ([]byte, string, *signer.Error) {
	if o.Key != "" {
		key = o.Key
	}
	where := fmt.Sprintf("%s %s/%s", kind, o.Namespace, o.Name)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, err := r.api.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(o.Namespace).
		Get(ctx, o.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, "", signer.Errorf(signer.Refused, "roots: %s does not exist; make it, with the signer's roots in PEM as %s", where, key)
	case err != nil:
		return nil, "", apiError(err, "roots: get "+where, fmt.Sprintf("the verb get on %s with resourceNames %s in namespace %s", resource,
			o.Name, o.Namespace))
	}
	value, ok, _ := unstructured.NestedString(found.Object, "data", key)
	text := []byte(value)
	if ok && kind == "Secret" {
		text, err = base64.StdEncoding.DecodeString(value)
	}
	if !ok || err != nil || len(text) == 0 {
		return nil, "", signer.Errorf(signer.Refused, "roots: %s has no entry %s; write the signer's roots in PEM there, or name another key",
			where, key)
	}
	return text, where + ", " + key, nil
}

// parseRoots reads roots in PEM. It leaves out those that are not valid now, of which a bundle may have some, but not
// all.
func parseRoots(text []byte, now time.Time) ([]*x509.Certificate, error) {
	if len(text) > maxRootBytes {
		return nil, fmt.Errorf("has %d bytes, the limit is %d", len(text), maxRootBytes)
	}
	certs, err := tlsconf.ParseAuthorities(text)
	if err != nil {
		return nil, fmt.Errorf("%w; write the signer's roots there", err)
	}
	if len(certs) > maxRoots {
		return nil, fmt.Errorf("has %d certificates, the limit is %d", len(certs), maxRoots)
	}
	var roots []*x509.Certificate
	var out error
	for n, c := range certs {
		if !c.BasicConstraintsValid || c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
			return nil, fmt.Errorf("certificate %d (%s) may not sign certificates; write the signer's root", n+1, cut(c.Subject.String(), 128))
		}
		if key, ok := c.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() < minRSABits {
			return nil, fmt.Errorf("certificate %d (%s) has an RSA key of %d bits, wanted %d or more; have the signer use another root", n+1,
				cut(c.Subject.String(), 128), key.N.BitLen(), minRSABits)
		}
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			out = errors.Join(out, fmt.Errorf("certificate %d (%s) is valid from %s to %s", n+1, cut(c.Subject.String(), 128),
				c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339)))
			continue
		}
		if !slices.ContainsFunc(roots, c.Equal) {
			roots = append(roots, c)
		}
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("no certificate is valid now: %w; write the signer's new root, or mend the clock", out)
	}
	return roots, nil
}
