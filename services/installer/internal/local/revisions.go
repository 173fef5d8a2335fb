package local

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"

	"fairlead.dev/pkg/tlsconf"

	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/plan"
)

// observations is what watchRevisions has last learned.
type observations struct {
	// newest is config-watcher's newest revision.
	newest uint64
	// acked is the revision that each proxy has acknowledged, by node id.
	acked map[string]uint64
	// served is the revision that each xds-server serves, by process.
	served map[string]uint64
	// expiry is when each process's certificate ends, by process.
	expiry map[string]time.Time
}

func newObservations() observations {
	return observations{acked: map[string]uint64{}, served: map[string]uint64{}, expiry: map[string]time.Time{}}
}

// watchRevisions asks for revisions every revisionsPeriod, and for certificates every certificatesEvery periods.
const (
	revisionsPeriod   = time.Second
	certificatesEvery = 5
)

// watchRevisions asks for revisions and certificates, which the console shows. What a process last answered stays while
// it does not answer.
func (n *Node) watchRevisions(ctx context.Context) error {
	for i := 0; n.wait(ctx, revisionsPeriod); i++ {
		n.pollRevisions(ctx)
		n.pollServedRevisions(ctx)
		if i%certificatesEvery == 0 {
			n.pollCertificates(ctx)
		}
	}
	return nil
}

func (n *Node) pollRevisions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := n.configAPI.ListProxies(ctx, &configv1.ListProxiesRequest{})
	if err != nil {
		n.cfg.Log.Debug("revisions of proxies cannot be read", "error", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen.newest = res.GetRevision().GetSequence()
	clear(n.seen.acked)
	for _, p := range res.GetProxies() {
		if p.GetAcked() != nil && !p.GetUnverified() {
			n.seen.acked[p.GetNodeId()] = p.GetAcked().GetSequence()
		}
	}
}

// pollServedRevisions asks each xds-server for the revision that it serves; config-watcher knows only what proxies
// have.
func (n *Node) pollServedRevisions(ctx context.Context) {
	for _, s := range n.cfg.Plan.Services {
		if s.Program != "xds-server" {
			continue
		}
		var answer struct {
			Revision struct {
				// Sequence is a 64-bit number, which protojson writes as text.
				Sequence uint64 `json:"sequence,string"`
			} `json:"revision"`
		}
		if err := n.debugPage(ctx, s, "/debug/proxies", &answer); err != nil {
			n.cfg.Log.Debug("revision of an xds-server cannot be read", "process", s.Name, "error", err)
			continue
		}
		n.mu.Lock()
		n.seen.served[s.Name] = answer.Revision.Sequence
		n.mu.Unlock()
	}
}

func (n *Node) pollCertificates(ctx context.Context) {
	set := func(name string, t time.Time) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.seen.expiry[name] = t
	}
	for _, s := range n.cfg.Plan.Services {
		if t, err := n.serviceExpiry(ctx, s); err == nil {
			set(s.Name, t)
		}
	}
	for _, p := range n.cfg.Plan.Pods {
		if p.Agent == nil || p.Agent.NoEnvoy {
			continue
		}
		certs, err := envoyadmin.New(p.Agent.AdminSocket()).Certificates(ctx)
		if err != nil {
			continue
		}
		for _, c := range certs {
			set(p.Agent.Name, c.NotAfter)
		}
	}
}

// serviceExpiry returns the end of the certificate that a service shows in a TLS handshake.
func (n *Node) serviceExpiry(ctx context.Context, s *plan.Service) (time.Time, error) {
	id, err := spiffeid.FromString(fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", n.cfg.Plan.TrustDomain, contract.SystemNamespace, s.Account))
	if err != nil {
		return time.Time{}, err
	}
	cfg := tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: n.cfg.Layout.RootCert()}), id)
	cfg.NextProtos = []string{"h2"}
	return handshakeExpiry(ctx, s.GRPC, cfg)
}

func handshakeExpiry(ctx context.Context, addr netip.AddrPort, cfg *tls.Config) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return time.Time{}, err
	}
	conn := tls.Client(raw, cfg)
	defer conn.Close()
	if err := conn.HandshakeContext(ctx); err != nil {
		return time.Time{}, err
	}
	return conn.ConnectionState().PeerCertificates[0].NotAfter, nil
}

// joinFew joins reasons, four at most.
func joinFew(reasons []string) string {
	const shown = 4
	if len(reasons) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(reasons[:shown], ", "), len(reasons)-shown)
	}
	return strings.Join(reasons, ", ")
}
