// Package auth decides who makes a call and whether they may. An Authenticator (MTLS, JWT, FirstOf) turns a call's
// credentials into a Peer; a Policy says which peers may call which method. pkg/rpc applies both to every gRPC call,
// and HTTP to requests of pkg/ops. The address of a caller is never a credential.
package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

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
	// Token is what the token says of its account; nil without a token.
	Token *Token
	// Cluster is the name of the further cluster whose key has signed the token; "" for the own cluster's, and without
	// a token.
	Cluster string
}

// Token is what Kubernetes writes into the token of a service account, beside its name.
type Token struct {
	// AccountUID is the account's, and Pod and PodUID are those of the Pod that the token is bound to. They are "" in
	// the tokens of other issuers.
	AccountUID, Pod, PodUID string
	// IssuedAt is zero if the token does not say it.
	IssuedAt time.Time
}

// ErrNoCredentials means that a call has no credentials of the kind that an Authenticator verifies.
var ErrNoCredentials = errors.New("no credentials presented")

// Authenticator proves who makes a gRPC call. ctx is the call's incoming context: transport security in the peer,
// headers in the incoming metadata. It must be quick and must not block on the network: a server runs it before it
// reads the message. Errors go to the caller, so they must not reveal more than why the credentials were refused.
type Authenticator interface {
	Authenticate(ctx context.Context) (Peer, error)
}

type peerKey struct{}

// NewContext returns a context that carries the authenticated caller.
func NewContext(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// PeerFrom returns the authenticated caller of a call; false if the method is open to anonymous callers.
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

// WorkloadOf is the inverse of WorkloadID; ok is false for an identity of another form.
func WorkloadOf(id spiffeid.ID) (namespace, serviceAccount string, ok bool) {
	parts := strings.Split(id.Path(), "/") // "", "ns", <namespace>, "sa", <service account>
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return "", "", false
	}
	return parts[2], parts[4], true
}

// ParseWorkload splits spiffe://<trust domain>/ns/<namespace>/sa/<service account>; ok is false for every other text.
func ParseWorkload(identity string) (namespace, serviceAccount string, ok bool) {
	id, err := spiffeid.FromString(identity)
	if err != nil || id.String() != identity {
		return "", "", false
	}
	return WorkloadOf(id)
}

// ErrExpired means that the certificate of the connection has expired since its handshake.
var ErrExpired = errors.New("the client certificate has expired since this connection was made; connect anew with a renewed certificate " +
	"or a token")

// MTLS authenticates by the client certificate of the connection, whose chain TLS has verified in the handshake
// (tlsconf.Server). It refuses a certificate that TLS has not verified, and one that has expired since the handshake: a
// connection may outlive its certificate.
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

// MTLSAt is MTLS with a clock.
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

// FirstOf returns the peer of the first authenticator that accepts the call. If none does, the error is the first that
// is not ErrNoCredentials, else ErrNoCredentials.
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
