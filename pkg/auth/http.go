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

// HTTP returns a function that authenticates HTTP requests as gRPC calls are, for ops.Config.Authenticate. Its error is
// ErrForbidden if the caller is authenticated and rule does not allow it.
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
