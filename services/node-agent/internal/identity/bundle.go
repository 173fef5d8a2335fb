package identity

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/sds"
)

// Bounds of the additional roots of a bundle.
const (
	maxExtraRoots = 256
	maxExtraBytes = 1 << 20
)

// reread is how often the list of revoked certificates is read although no change was seen.
const reread = 30 * time.Second

// bundleConfig of a Bundle. Source, TrustDomains and Log are required.
type bundleConfig struct {
	Source tlsconf.Source
	// Roots, if it is not nil, is where Source has its roots from: it notifies of a change sooner.
	Roots tlsconf.Source
	// TrustDomains are the workload's own and its aliases.
	TrustDomains []string
	// Extra are PEM texts of further roots, for any trust domain.
	Extra []string
	// Anchors are further roots, some of them at a URL.
	Anchors []config.Anchor
	// RevocationsFile need not exist.
	RevocationsFile string
	// Revocations are the lists of revoked certificates of the ca's bundle in DER, of which Source or Roots notify; nil
	// for none. RevocationsFile counts in their place.
	Revocations func() [][]byte
	Debounce    time.Duration
	Fetch       fetcher
	Log         *slog.Logger
	Clock       clock.Clock
	Registerer  prometheus.Registerer
}

// Pushed is what a control plane sends of roots, all of it at once.
type Pushed struct {
	// Roots are PEM texts of roots for any trust domain.
	Roots []string
	// Anchors are further roots, some of them for single trust domains or at a URL.
	Anchors []config.Anchor
	// Aliases are further names of the mesh's trust domain.
	Aliases []string
}

// Bundle is a source with further roots, by which peers of other meshes are verified too, and with a list of revoked
// certificates. It is a tlsconf.Source and safe for concurrent use.
type Bundle struct {
	notify.Notifier
	cfg    bundleConfig
	errors prometheus.Counter
	// news wakes followURLs up after a Push.
	news chan struct{}
	// alone makes one warning of it that an external server's roots stand alone.
	alone sync.Once

	mu sync.Mutex
	// pushed is what a control plane has sent; fetched are the roots at URLs, by URL.
	pushed  Pushed
	fetched map[string]string
	// extra are the roots for any trust domain, domains those for some only, by name.
	extra []byte
	// own are the mesh's trust domains.
	own         []string
	domains     map[string][]byte
	revocations []byte
	problem     string
	lists       lists
	// current was made of base.
	current, base *tlsconf.Material
}

var _ tlsconf.Source = (*Bundle)(nil)

// newBundle checks the roots. Run follows the list of revoked certificates and the URLs.
func newBundle(c bundleConfig) (*Bundle, error) {
	c.Clock = clock.Or(c.Clock)
	b := &Bundle{cfg: c, fetched: map[string]string{}, news: make(chan struct{}, 1), lists: newLists(c.Registerer),
		errors: promauto.With(c.Registerer).NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_trust_bundle_failures_total",
			Help: "Attempts to fetch a SPIFFE bundle that failed.",
		})}
	return b, b.join()
}

// join puts all further roots together. If one of them is malformed, it returns an error and changes nothing. b.mu is
// held, or nobody else has b yet.
func (b *Bundle) join() error {
	everywhere := slices.Concat(b.cfg.Extra, b.pushed.Roots)
	some := map[string][]string{}
	for _, a := range b.anchors() {
		text := a.PEM
		if a.URL != "" {
			text = b.fetched[a.URL]
		}
		for _, td := range a.TrustDomains {
			some[td] = slices.Concat(some[td], present(text))
		}
		if len(a.TrustDomains) == 0 {
			everywhere = slices.Concat(everywhere, present(text))
		}
	}
	extra, err := joinRoots(everywhere)
	if err != nil {
		return err
	}
	domains := map[string][]byte{}
	for td, texts := range some {
		if domains[td], err = joinRoots(texts); err != nil {
			return fmt.Errorf("trust domain %s: %w", td, err)
		}
	}
	if domains := b.trustDomains(); !slices.Equal(domains, b.own) {
		b.own, b.base = domains, nil
		b.Notify()
	}
	if !bytes.Equal(extra, b.extra) || !maps.EqualFunc(domains, b.domains, bytes.Equal) {
		b.extra, b.domains, b.base = extra, domains, nil
		b.Notify()
	}
	return nil
}

// anchors are those of the configuration and of the control plane. b.mu is held.
func (b *Bundle) anchors() []config.Anchor { return slices.Concat(b.cfg.Anchors, b.pushed.Anchors) }

// trustDomains are the workload's own and its aliases, each once. b.mu is held.
func (b *Bundle) trustDomains() []string {
	var out []string
	for _, td := range slices.Concat(b.cfg.TrustDomains, b.pushed.Aliases) {
		if !slices.Contains(out, td) {
			out = append(out, td)
		}
	}
	return out
}

// present is a list of the text, unless there is none yet.
func present(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// joinRoots checks PEM texts of certificate authorities and puts them together, each text once.
func joinRoots(texts []string) ([]byte, error) {
	if len(texts) > maxExtraRoots {
		return nil, fmt.Errorf("%d sets of roots: at most %d are used", len(texts), maxExtraRoots)
	}
	var out []byte
	for i, text := range texts {
		if len(out)+len(text) > maxExtraBytes {
			return nil, fmt.Errorf("roots of more than %d bytes", maxExtraBytes)
		}
		if _, err := tlsconf.ParseAuthorities([]byte(text)); err != nil {
			return nil, fmt.Errorf("set %d of roots: %w", i, err)
		}
		if one := append(bytes.TrimSpace([]byte(text)), '\n'); !bytes.Contains(out, one) {
			out = append(out, one...)
		}
	}
	return out, nil
}

// Push replaces what a control plane has sent. If a root is malformed, it returns an error, and those before stay.
// What is at a URL counts when Run has fetched it.
func (b *Bundle) Push(p Pushed) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.cfg.Anchors) + len(p.Anchors); n > config.MaxAnchors {
		return fmt.Errorf("%d entries of caCertificates, with those of the agent's own mesh configuration: at most %d are used", n,
			config.MaxAnchors)
	}
	before := b.pushed
	b.pushed = p
	if err := b.join(); err != nil {
		b.pushed = before
		return err
	}
	notify.Wake(b.news)
	return nil
}

// adopt replaces the roots that were fetched from a URL. It does nothing if no anchor names the URL any more.
func (b *Bundle) adopt(address, text string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.ContainsFunc(b.anchors(), func(a config.Anchor) bool { return a.URL == address }) {
		return nil
	}
	before, had := b.fetched[address]
	b.fetched[address] = text
	if err := b.join(); err != nil {
		if delete(b.fetched, address); had {
			b.fetched[address] = before
		}
		return err
	}
	return nil
}

// Current returns the source's material with the roots for any trust domain.
func (b *Bundle) Current() (*tlsconf.Material, error) {
	base, err := b.cfg.Source.Current()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.extra) == 0 {
		return base, nil
	}
	if b.base == base {
		return b.current, nil
	}
	all := *base
	all.RootsPEM = merged(base.RootsPEM, b.extra)
	if all.Roots, err = tlsconf.ParseRoots(all.RootsPEM); err != nil {
		return nil, err
	}
	b.current, b.base = &all, base
	return b.current, nil
}

func merged(roots ...[]byte) []byte {
	var out []byte
	for _, r := range roots {
		if r = bytes.TrimSpace(r); len(r) > 0 {
			out = append(append(out, r...), '\n')
		}
	}
	return out
}

// Validation returns how Envoy verifies peers where the roots alone do not say it: with the context of an external SDS
// server, with roots for each trust domain, or with a list of revoked certificates. Otherwise it returns nil.
func (b *Bundle) Validation() *tlsv3.CertificateValidationContext {
	if v := b.external(); v != nil {
		return v
	}
	m, err := b.Current()
	if err != nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	crl := b.revocations
	if crl == nil {
		crl = b.revoked(m)
	}
	if len(b.domains) > 0 {
		v, err := byTrustDomain(b.byDomain(m))
		if err != nil { // the names were checked
			b.cfg.Log.Error("trust bundle cannot be made", "error", err)
			return nil
		}
		return v
	}
	if crl == nil {
		return nil
	}
	return &tlsv3.CertificateValidationContext{TrustedCa: inline(m.RootsPEM), Crl: inline(crl)}
}

// external returns the validation context of an external SDS server that sends roots for each trust domain itself; else
// nil.
func (b *Bundle) external() *tlsv3.CertificateValidationContext {
	e, ok := b.cfg.Source.(*External)
	if !ok {
		return nil
	}
	b.mu.Lock()
	more := len(b.cfg.Extra) + len(b.pushed.Roots) + len(b.anchors())
	b.mu.Unlock()
	v := e.Validation()
	if v != nil && more > 0 {
		b.alone.Do(func() {
			b.cfg.Log.Warn("the external SDS server sends roots for each trust domain: caCertificates and caCertificatesPem have no effect, have " +
				"it send those too")
		})
	}
	return v
}

// byDomain lists the trust domains with their roots: those of the mesh for its own, those for any domain for all. b.mu
// is held.
func (b *Bundle) byDomain(m *tlsconf.Material) []domain {
	var out []domain
	for _, td := range b.own {
		out = append(out, domain{td, merged(m.RootsPEM, b.domains[td])})
	}
	for _, td := range slices.Sorted(maps.Keys(b.domains)) {
		if roots := merged(b.extra, b.domains[td]); !slices.Contains(b.own, td) && len(roots) > 0 {
			out = append(out, domain{td, roots})
		}
	}
	return out
}

// Run follows the source, the list of revoked certificates and the URLs until ctx ends.
func (b *Bundle) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	if b.cfg.RevocationsFile != "" {
		tasks.Go(func() {
			filewatch.Follower{
				Files: func() []string { return []string{b.cfg.RevocationsFile} }, Read: b.readRevocations,
				Debounce: b.cfg.Debounce, Clock: b.cfg.Clock, Log: b.cfg.Log,
			}.Run(ctx)
		})
	}
	tasks.Go(func() { b.followURLs(ctx) })
	if b.cfg.Revocations != nil {
		tasks.Go(func() { b.followLists(ctx) })
	}
	sources := []interface{ Changed() <-chan struct{} }{b.cfg.Source}
	if b.cfg.Roots != nil {
		sources = append(sources, b.cfg.Roots)
	}
	err := forward(ctx, &b.Notifier, sources...)
	tasks.Wait()
	return err
}

// readRevocations reads the list. A list that is malformed changes nothing; one that is gone does not count any more.
func (b *Bundle) readRevocations() time.Duration {
	list, err := sds.ReadCRL(b.cfg.RevocationsFile)
	b.mu.Lock()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	news := problem != b.problem
	b.problem = problem
	changed := err == nil && !bytes.Equal(list, b.revocations)
	if changed {
		b.revocations = list
	}
	domains := len(b.domains) > 0
	b.mu.Unlock()
	switch {
	case problem != "" && news:
		b.cfg.Log.Warn("list of revoked certificates cannot be used, the last one stays", "error", err)
	case changed:
		b.cfg.Log.Info("list of revoked certificates read", "file", b.cfg.RevocationsFile, "bytes", len(list))
		if list != nil && (domains || b.external() != nil) {
			b.cfg.Log.Error("revoked certificates are not refused: Envoy takes no list of them beside roots for single trust domains")
		}
		b.Notify()
	}
	return reread
}
