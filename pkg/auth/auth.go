// Package auth is the one place where Fairlead decides who calls and whether they may. An Authenticator turns a call's
// credentials into a Peer; a Policy says which peers may call which method. The address a call comes from is never a credential.
package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/clock"
)

// Methods by which a peer proves who it is.
const (
	MethodMTLS = "mtls"
	MethodJWT  = "jwt"
)

// Peer is an authenticated caller.
type Peer struct {
	ID spiffeid.ID
	// Method is MethodMTLS or MethodJWT.
	Method string
}

// ErrNoCredentials means that the caller presented none of the kind an Authenticator looks for.
var ErrNoCredentials = errors.New("no credentials presented")

// Authenticator proves who makes a gRPC call. ctx is the call's incoming context: transport security in the peer, headers in the
// incoming metadata. It must be quick and must not block on the network: a server runs it before it reads the message. Errors go
// to the caller, so they must not reveal more than why the credentials were refused.
type Authenticator interface {
	Authenticate(ctx context.Context) (Peer, error)
}

type peerKey struct{}

// NewContext gives a context that carries the authenticated caller.
func NewContext(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// PeerFrom is the authenticated caller of the call ctx belongs to; false if the method is open to anonymous callers.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// WorkloadID is spiffe://<td>/ns/<namespace>/sa/<serviceAccount>.
func WorkloadID(td spiffeid.TrustDomain, namespace, serviceAccount string) (spiffeid.ID, error) {
	if td.IsZero() {
		return spiffeid.ID{}, errors.New("trust domain is empty")
	}
	id, err := spiffeid.FromSegments(td, "ns", namespace, "sa", serviceAccount)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("identity of service account %q in namespace %q: %w", serviceAccount, namespace, err)
	}
	return id, nil
}

// WorkloadOf is the opposite of WorkloadID; ok is false for an identity of any other form.
func WorkloadOf(id spiffeid.ID) (namespace, serviceAccount string, ok bool) {
	parts := strings.Split(id.Path(), "/") // "", "ns", <namespace>, "sa", <service account>
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return "", "", false
	}
	return parts[2], parts[4], true
}

// ErrExpired means that the connection was made with a certificate that is not valid now.
var ErrExpired = errors.New("the client certificate has expired since this connection was made; connect anew with a renewed certificate or a token")

// MTLS authenticates by the client certificate of the connection. The TLS configuration (tlsconf.Server) has verified
// its chain; a certificate that was presented but not verified is refused, and so is one that has expired since: TLS
// looks once, in the handshake, and a connection may outlive its certificate.
func MTLS() Authenticator { return MTLSAt(clock.Real()) }

// ClientCertificate returns the certificate that the client of the call's connection has shown, nil if it has shown
// none. It does not tell whether the certificate was verified and is valid now; MTLS does.
func ClientCertificate(ctx context.Context) *x509.Certificate {
	leaf, _ := clientCertificate(ctx)
	return leaf
}

// clientCertificate is ClientCertificate, and whether TLS has verified the certificate.
func clientCertificate(ctx context.Context) (leaf *x509.Certificate, verified bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return nil, false
	}
	return info.State.PeerCertificates[0], len(info.State.VerifiedChains) > 0
}

// MTLSAt is MTLS by a clock.
func MTLSAt(c clock.Clock) Authenticator { return mtls{clock.Or(c)} }

type mtls struct{ clock clock.Clock }

func (m mtls) Authenticate(ctx context.Context) (Peer, error) {
	leaf, verified := clientCertificate(ctx)
	switch {
	case leaf == nil:
		return Peer{}, ErrNoCredentials
	case !verified:
		return Peer{}, errors.New("client certificate was not verified")
	}
	if now := m.clock.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return Peer{}, ErrExpired
	}
	id, err := x509svid.IDFromCert(leaf)
	if err != nil {
		return Peer{}, errors.New("client certificate carries no SPIFFE identity")
	}
	return Peer{ID: id, Method: MethodMTLS}, nil
}

// FirstOf asks each in turn and takes the first peer that is proven. If none is, the error is that of the first which found
// credentials and refused them, else ErrNoCredentials.
func FirstOf(authenticators ...Authenticator) Authenticator { return firstOf(authenticators) }

type firstOf []Authenticator

func (f firstOf) Authenticate(ctx context.Context) (Peer, error) {
	var refused error
	for _, a := range f {
		p, err := a.Authenticate(ctx)
		if err == nil {
			return p, nil
		}
		if refused == nil && !errors.Is(err, ErrNoCredentials) {
			refused = err
		}
	}
	if refused != nil {
		return Peer{}, refused
	}
	return Peer{}, ErrNoCredentials
}
