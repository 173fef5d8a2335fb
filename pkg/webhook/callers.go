package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/tlsconf"
)

// APIServers tells which callers are API servers: those at an address of EndpointSlice default/kubernetes, which the
// service follows, or of a flag, and those that show a client certificate of an authority that a flag names. They have
// places, memory and turns of their own, which no other caller can take. The zero value knows none; an API server that
// is not known shares with all others.
type APIServers struct {
	// Addresses and CAFile are flags; Require refuses others than API servers.
	Addresses []string
	CAFile    string
	Require   bool

	prefixes []netip.Prefix
	roots    *x509.CertPool
	// known are those of the EndpointSlice.
	known atomic.Pointer[[]netip.Addr]
}

// maxCABytes bounds the file of --api-server-ca-file.
const maxCABytes = 1 << 20

// AddFlags registers the flags.
func (a *APIServers) AddFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&a.Addresses, "api-server-addresses", nil,
		"addresses or CIDRs from which API servers call the webhook, beside those of EndpointSlice default/kubernetes")
	flags.StringVar(&a.CAFile, "api-server-ca-file", "",
		"authorities, PEM, of the client certificate that API servers show to webhooks, where they are configured to show one")
	flags.BoolVar(&a.Require, "require-api-server", false,
		"refuse callers of the webhook that are no API servers by the flags before, or by the EndpointSlice")
}

// Check reads what the flags say.
func (a *APIServers) Check() error {
	var errs []error
	a.prefixes = nil
	for _, text := range a.Addresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			var at netip.Addr
			if at, err = netip.ParseAddr(text); err == nil {
				prefix, err = at.Prefix(at.BitLen())
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--api-server-addresses: %q is neither an address nor a CIDR", text))
		}
		a.prefixes = append(a.prefixes, prefix)
	}
	if a.CAFile != "" {
		text, err := fileio.Read(a.CAFile, maxCABytes)
		if err == nil {
			a.roots, err = tlsconf.ParseRoots(text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--api-server-ca-file: %w", err))
		}
	}
	return errors.Join(errs...)
}

// TLS returns the configuration of the webhook's port, after that of the service: with --api-server-ca-file it asks for
// a client certificate, which are judges.
func (a *APIServers) TLS(of *tls.Config) *tls.Config {
	if a.roots == nil {
		return of
	}
	out := of.Clone()
	out.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		cfg, err := of.GetConfigForClient(hello)
		if err != nil {
			return nil, err
		}
		cfg.ClientAuth, cfg.ClientCAs, cfg.VerifyConnection = tls.RequestClientCert, a.roots, nil
		return cfg, nil
	}
	return out
}

// Set tells the addresses of the EndpointSlice.
func (a *APIServers) Set(addresses []string) {
	var known []netip.Addr
	for _, text := range addresses {
		if at, err := netip.ParseAddr(text); err == nil {
			known = append(known, at.Unmap())
		}
	}
	a.known.Store(&known)
}

// are reports whether a request is an API server's.
func (a *APIServers) are(r *http.Request) bool {
	if a.roots != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		between := x509.NewCertPool()
		for _, c := range r.TLS.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := r.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: a.roots, Intermediates: between,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err == nil {
			return true
		}
	}
	at, err := netip.ParseAddr(host(r.RemoteAddr))
	if err != nil {
		return false
	}
	at = at.Unmap()
	if known := a.known.Load(); known != nil && slices.Contains(*known, at) {
		return true
	}
	return slices.ContainsFunc(a.prefixes, func(p netip.Prefix) bool { return p.Contains(at) })
}

// host is the address of a caller without its port and zone.
func host(remote string) string {
	if h, _, err := net.SplitHostPort(remote); err == nil {
		remote = h
	}
	remote, _, _ = strings.Cut(remote, "%")
	return remote
}
