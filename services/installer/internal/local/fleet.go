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
	"fairlead.dev/services/installer/internal/plan"
)

// fleet is what is known of revisions and certificates.
type fleet struct {
	// newest is config-watcher's revision.
	newest uint64
	// acked is the revision that each proxy has acknowledged, by node id.
	acked map[string]uint64
	// served is the revision that each xds-server serves from, by process.
	served map[string]uint64
	// expiry of certificates, by process.
	expiry map[string]time.Time
}

func newFleet() fleet {
	return fleet{acked: map[string]uint64{}, served: map[string]uint64{}, expiry: map[string]time.Time{}}
}

// How often revisions and certificates are asked for.
const (
	fleetPeriod = time.Second
	certPeriod  = 5 // in fleet periods
)

// observe asks for revisions and certificates, for the table. Whoever does not answer keeps what was last known.
func (n *Node) observe(ctx context.Context) error {
	for i := 0; n.wait(ctx, fleetPeriod); i++ {
		n.askRevisions(ctx)
		n.askServed(ctx)
		if i%certPeriod == 0 {
			n.askCertificates(ctx)
		}
	}
	return nil
}

func (n *Node) askRevisions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := n.store.ListProxies(ctx, &configv1.ListProxiesRequest{})
	if err != nil {
		n.cfg.Log.Debug("fleet is not known", "error", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fleet.newest = res.GetRevision().GetSequence()
	clear(n.fleet.acked)
	for _, p := range res.GetProxies() {
		if p.GetAcked() != nil && !p.GetUnverified() {
			n.fleet.acked[p.GetNodeId()] = p.GetAcked().GetSequence()
		}
	}
}

// askServed asks the xds-servers themselves: what config-watcher knows of them is the proxies'.
func (n *Node) askServed(ctx context.Context) {
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
		if err := n.debug(ctx, s, "/debug/proxies", &answer); err != nil {
			n.cfg.Log.Debug("revision of an xds-server is not known", "process", s.Name, "error", err)
			continue
		}
		n.mu.Lock()
		n.fleet.served[s.Name] = answer.Revision.Sequence
		n.mu.Unlock()
	}
}

func (n *Node) askCertificates(ctx context.Context) {
	set := func(name string, t time.Time) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.fleet.expiry[name] = t
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

// serviceExpiry looks at the certificate that a service shows in a handshake.
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

// short names what is not ready, for a line of text.
func short(reasons []string) string {
	const shown = 4
	if len(reasons) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(reasons[:shown], ", "), len(reasons)-shown)
	}
	return strings.Join(reasons, ", ")
}
