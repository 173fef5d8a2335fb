package mcpserver

import (
	"context"
	"net/netip"
	"slices"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/auth"
)

// methodAddress is the method of callers that are known by their address alone.
const methodAddress = "address"

// ByAddress authenticates a caller that shows no certificate by its address, as one of allowed: an istiod has no other
// way. Its identity is one that no workload can have.
func ByAddress(td spiffeid.TrustDomain, allowed []netip.Prefix) auth.Authenticator {
	return byAddress{td, allowed}
}

type byAddress struct {
	td      spiffeid.TrustDomain
	allowed []netip.Prefix
}

// Authenticate implements auth.Authenticator.
func (b byAddress) Authenticate(ctx context.Context) (auth.Peer, error) {
	p, ok := peer.FromContext(ctx)
	if !ok || auth.ClientCertificate(ctx) != nil {
		return auth.Peer{}, auth.ErrNoCredentials
	}
	at, err := netip.ParseAddrPort(p.Addr.String()) // package rpc wraps connections and their addresses
	if err != nil {
		return auth.Peer{}, auth.ErrNoCredentials
	}
	ip := at.Addr().Unmap().WithZone("")
	if !slices.ContainsFunc(b.allowed, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return auth.Peer{}, auth.ErrNoCredentials
	}
	id, err := spiffeid.FromSegments(b.td, "mcp", "address", hexOf(ip))
	return auth.Peer{ID: id, Method: methodAddress}, err
}

// hexOf writes an address in the characters that a SPIFFE id may have.
func hexOf(ip netip.Addr) string {
	const digits = "0123456789abcdef"
	var out []byte
	for _, b := range ip.AsSlice() {
		out = append(out, digits[b>>4], digits[b&15])
	}
	return string(out)
}

// Rule admits the callers of ByAddress.
func Rule() auth.Rule { return rule{} }

type rule struct{}

// Allowed implements auth.Rule.
func (rule) Allowed(p auth.Peer) bool { return p.Method == methodAddress }
