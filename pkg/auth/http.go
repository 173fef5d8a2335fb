package auth

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// ErrForbidden means that the caller is known and not allowed.
var ErrForbidden = errors.New("not allowed for this identity")

// HTTP puts HTTP requests through the same authenticators and rules as gRPC calls, for ops.Config.Authenticate. The error is
// ErrForbidden when the caller is known but rule does not allow it.
func HTTP(a Authenticator, rule Rule) func(*http.Request) error {
	return func(r *http.Request) error {
		p, err := a.Authenticate(incoming(r))
		if err != nil {
			return err
		}
		if !rule.Allowed(p) {
			return ErrForbidden
		}
		return nil
	}
}

func incoming(r *http.Request) context.Context {
	ctx := r.Context()
	if r.TLS != nil {
		ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{State: *r.TLS}})
	}
	if values := r.Header.Values("Authorization"); len(values) > 0 {
		ctx = metadata.NewIncomingContext(ctx, metadata.MD{"authorization": values})
	}
	return ctx
}
