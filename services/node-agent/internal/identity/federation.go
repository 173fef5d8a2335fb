package identity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/config"
)

// TakeProxyConfig takes the roots in a ProxyConfig of contract.ProxyConfigType in place of those in the one before. It
// leaves out the mesh's own, which come with the identity and vouch for no other trust domain. If a root is malformed,
// it returns an error, and those before stay.
func (b *Bundle) TakeProxyConfig(a *anypb.Any) error {
	pc := &meshv1alpha1.ProxyConfig{}
	if err := a.UnmarshalTo(pc); err != nil {
		return err
	}
	p := Pushed{Roots: pc.GetCaCertificatesPem()}
	if text, has := pc.GetProxyMetadata()[contract.OwnRootsMetadata]; has {
		own, err := strconv.ParseUint(text, 10, 31)
		if err != nil || int(own) > len(p.Roots) {
			return fmt.Errorf("proxyMetadata.%s: %q is no number of at most the %d entries of caCertificatesPem",
				contract.OwnRootsMetadata, text, len(p.Roots))
		}
		p.Roots = p.Roots[:len(p.Roots)-int(own)]
	}
	if text, has := pc.GetProxyMetadata()[contract.RootsMetadata]; has {
		var err error
		if p.Anchors, p.Aliases, err = config.MeshAnchors([]byte(text)); err != nil {
			return fmt.Errorf("proxyMetadata.%s: %w", contract.RootsMetadata, err)
		}
	}
	if err := b.Push(p); err != nil {
		return fmt.Errorf("caCertificatesPem: %w", err)
	}
	b.cfg.Log.Info("roots of the control plane taken", "entries", len(p.Roots)+len(p.Anchors))
	return nil
}

// fetcher is the part of fetch.Client that a Bundle needs.
type fetcher interface {
	Get(ctx context.Context, url string, header http.Header) ([]byte, error)
}

// How often a SPIFFE bundle is fetched: as often as it says (spiffe_refresh_hint), within bounds, and every five
// minutes if it does not say (SPIFFE Trust Domain and Bundle, section 4.1.2). After a failure sooner, with back-off.
const (
	defaultRefresh = 5 * time.Minute
	minRefresh     = 30 * time.Second
	maxRefresh     = time.Hour
	firstRetry     = time.Second
)

// followURLs fetches what the anchors name until ctx ends: each URL once, however many anchors name it.
func (b *Bundle) followURLs(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	stops := map[string]context.CancelFunc{}
	for {
		wanted := b.wanted()
		for _, address := range wanted {
			if stops[address] == nil {
				following, stop := context.WithCancel(ctx)
				stops[address] = stop
				tasks.Go(func() { b.follow(following, address) })
			}
		}
		for address, stop := range stops {
			if !slices.Contains(wanted, address) {
				stop()
				delete(stops, address)
				b.forget(address)
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range stops {
				stop()
			}
			return
		case <-b.news:
		}
	}
}

// wanted are the URLs that the anchors name.
func (b *Bundle) wanted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, a := range b.anchors() {
		if a.URL != "" && !slices.Contains(out, a.URL) {
			out = append(out, a.URL)
		}
	}
	return out
}

// forget drops what was fetched from a URL that no anchor names any more.
func (b *Bundle) forget(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.fetched, address)
}

// follow fetches the bundle at a URL until ctx ends. The last good one stays while it cannot be fetched.
func (b *Bundle) follow(ctx context.Context, address string) {
	retry, said := firstRetry, ""
	for {
		text, next, err := b.fetch(ctx, address)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = b.adopt(address, text)
		}
		if err != nil {
			b.errors.Inc()
			next, retry = retry, min(2*retry, defaultRefresh)
			if err.Error() != said {
				said = err.Error()
				b.cfg.Log.Warn("SPIFFE bundle cannot be used, the last good one stays", "url", address, "error", err)
			}
		} else {
			retry, said = firstRetry, ""
		}
		if !clock.Sleep(ctx, b.cfg.Clock, time.Duration(float64(next)*(0.9+0.2*rand.Float64()))) {
			return
		}
	}
}

// fetch returns the X.509 authorities of a bundle in PEM, and when to fetch it again.
func (b *Bundle) fetch(ctx context.Context, address string) (string, time.Duration, error) {
	raw, err := b.cfg.Fetch.Get(ctx, address, nil)
	if err != nil {
		return "", 0, err
	}
	return parseBundle(raw)
}

// parseBundle reads a SPIFFE bundle, a JWK set.
func parseBundle(raw []byte) (string, time.Duration, error) {
	// The trust domain is that of the configuration, a bundle has none.
	parsed, err := spiffebundle.Parse(spiffeid.RequireTrustDomainFromString("bundle"), raw)
	if err != nil {
		return "", 0, fmt.Errorf("SPIFFE bundle: %w", err)
	}
	authorities := parsed.X509Authorities()
	if len(authorities) == 0 {
		return "", 0, errors.New("SPIFFE bundle has no X.509 authority")
	}
	var out []byte
	for _, c := range authorities {
		out = append(out, tlsconf.EncodeCertificate(c)...)
	}
	refresh := defaultRefresh
	if hint, ok := parsed.RefreshHint(); ok {
		refresh = min(max(hint, minRefresh), maxRefresh)
	}
	return string(out), refresh, nil
}
