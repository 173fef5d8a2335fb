package authn

import (
	"context"
	"time"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/ca/internal/tokentime"
)

// TokenTime returns when the owner of the call's client certificate last showed a token, and the zero time without a
// certificate. Package issuance calls it for callers that a certificate authenticated.
func TokenTime(ctx context.Context) time.Time {
	if cert := auth.ClientCertificate(ctx); cert != nil {
		return tokentime.Of(cert)
	}
	return time.Time{}
}

// WithCluster authenticates like next, and says of a caller with a certificate, too, of which remote cluster the token
// was that it was issued for.
func WithCluster(next auth.Authenticator) auth.Authenticator { return withCluster{next} }

type withCluster struct{ next auth.Authenticator }

func (w withCluster) Authenticate(ctx context.Context) (auth.Peer, error) {
	who, err := w.next.Authenticate(ctx)
	if cert := auth.ClientCertificate(ctx); err == nil && who.Method == auth.MethodMTLS && cert != nil {
		who.Cluster = tokentime.Cluster(cert)
	}
	return who, err
}

// TokenAfterMaxAge authenticates like next, with one exception: a caller that last showed a token more than maxAge ago,
// and now sends a valid token of the same identity beside its certificate, counts as authenticated by the token.
// Istio's agent sends both at once, and next decides by the certificate alone. maxAge is asked for each call, with the
// remote cluster of the certificate ("": the own one): it is 0 while the mesh's signer needs tokens.
func TokenAfterMaxAge(next, tokens auth.Authenticator, maxAge func(cluster string) time.Duration, clock Clock) auth.Authenticator {
	return tokenAfterMaxAge{next: next, tokens: tokens, maxAge: maxAge, clock: clock}
}

type tokenAfterMaxAge struct {
	next, tokens auth.Authenticator
	maxAge       func(cluster string) time.Duration
	clock        Clock
}

func (t tokenAfterMaxAge) Authenticate(ctx context.Context) (auth.Peer, error) {
	who, err := t.next.Authenticate(ctx)
	if err != nil || who.Method != auth.MethodMTLS || t.clock.Now().Sub(TokenTime(ctx)) <= t.maxAge(who.Cluster) {
		return who, err
	}
	if byToken, err := t.tokens.Authenticate(ctx); err == nil && byToken.ID == who.ID {
		return byToken, nil
	}
	return who, nil
}
