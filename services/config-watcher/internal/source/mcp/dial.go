package mcp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
)

// Trust is what connections of the mesh are made with.
type Trust struct {
	// Identity is this process's own certificate, with the mesh's roots.
	Identity tlsconf.Source
	// Root is the mesh's root namespace now, whose workloads are of the control plane.
	Root func() string
	// Secret reads what tlsSettings.credentialName names, which is a Secret of this control plane's namespace; nil if
	// there is no API server.
	Secret func(ctx context.Context, name string) (*corev1.Secret, error)
}

// local are addresses of this machine, where adapters of registries run beside Istio's control plane.
var local = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// Dialer returns Config.Dial for the server of a config source, whose address is that of host. Files and the Secret are
// read for each connection, so that new ones count from the next stream on.
func Dialer(host string, settings *networking.ClientTLSSettings, trust Trust) func(context.Context) (*grpc.ClientConn, error) {
	return func(ctx context.Context) (*grpc.ClientConn, error) {
		secure, err := tlsOf(ctx, host, settings, trust)
		if err != nil {
			return nil, err
		}
		dialer := fetch.Addresses{Allow: local}.Dialer()
		// The dialler looks names up; a target of this form leaves the name that is verified to tlsOf.
		return rpc.Dial(rpc.ClientConfig{Target: "passthrough:///" + host, TLS: secure, Insecure: secure == nil, MaxRecvBytes: MaxMessageBytes},
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			}))
	}
}

// tlsOf makes the TLS settings of a config source; nil is plaintext, which is Istio's default.
func tlsOf(ctx context.Context, host string, settings *networking.ClientTLSSettings, trust Trust) (*tls.Config, error) {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", host, err)
	}
	name = cmp.Or(settings.GetSni(), name)
	switch settings.GetMode() {
	case networking.ClientTLSSettings_DISABLE:
		return nil, nil //nolint:nilnil // no TLS
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		return ofTheMesh(name, settings.GetSubjectAltNames(), trust), nil
	}
	m, err := materialOf(ctx, settings, trust)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: name, RootCAs: m.roots,
		InsecureSkipVerify: settings.GetInsecureSkipVerify().GetValue(), //nolint:gosec // whoever writes the mesh configuration asks for it
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := named(cs, settings.GetSubjectAltNames()); err != nil {
				return err
			}
			return m.unrevoked(cs)
		},
	}
	if m.own != nil {
		cfg.Certificates = []tls.Certificate{*m.own}
	}
	return cfg, nil
}

// named verifies that a certificate, which the roots vouch for, has one of the names; any will do without names.
func named(cs tls.ConnectionState, names []string) error {
	if len(names) == 0 {
		return nil
	}
	leaf := cs.PeerCertificates[0]
	has := slices.Clone(leaf.DNSNames)
	for _, u := range leaf.URIs {
		has = append(has, u.String())
	}
	for _, ip := range leaf.IPAddresses {
		has = append(has, ip.String())
	}
	if slices.ContainsFunc(has, func(name string) bool { return slices.Contains(names, name) }) {
		return nil
	}
	return fmt.Errorf("the server's certificate is for %q, and tlsSettings.subjectAltNames wants one of %q", has, names)
}

// ofTheMesh is ISTIO_MUTUAL: both sides have certificates of the mesh. A server without an expected name must be of the
// root namespace, or have the name that was dialled: any workload has a certificate of the mesh.
func ofTheMesh(name string, names []string, trust Trust) *tls.Config {
	cfg := tlsconf.ClientNamed(trust.Identity, "")
	cfg.ServerName = name
	chain := cfg.VerifyConnection
	cfg.MinVersion = tls.VersionTLS12 // an istiod of FIPS builds has no other
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		if err := chain(cs); err != nil {
			return err
		}
		if len(names) > 0 {
			return named(cs, names)
		}
		leaf := cs.PeerCertificates[0]
		if leaf.VerifyHostname(name) == nil {
			return nil
		}
		own, err := trust.Identity.Current()
		if err != nil {
			return err
		}
		id, err := own.ID()
		if err != nil {
			return err
		}
		for _, u := range leaf.URIs {
			namespace, _, ok := auth.ParseWorkload(u.String())
			if ok && namespace == trust.Root() && strings.EqualFold(u.Host, id.TrustDomain().Name()) {
				return nil
			}
		}
		return errors.New("the server's certificate is of the mesh, but neither of its root namespace nor for " + name +
			"; name what it has in tlsSettings.subjectAltNames")
	}
	return cfg
}

// HostOf is the host:port of a config source of the scheme xds; "" for others.
func HostOf(c *mesh.ConfigSource) string {
	host, _ := strings.CutPrefix(c.GetAddress(), "xds://")
	if host == c.GetAddress() {
		return ""
	}
	return strings.TrimSuffix(host, "/")
}
