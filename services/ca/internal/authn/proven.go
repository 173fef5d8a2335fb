package authn

import (
	"context"
	"time"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/ca/internal/proof"
)

// Proven is when the owner of the call's client certificate last showed a token, the zero time without a certificate.
// The issuance handler asks for callers that a certificate authenticated.
func Proven(ctx context.Context) time.Time {
	if cert := auth.ClientCertificate(ctx); cert != nil {
		return proof.Of(cert)
	}
	return time.Time{}
}

// TokenForOld authenticates like next, except that a caller whose certificate is from too long after its last token, by
// maxAge, counts as authenticated by the token that it sends along, if that is valid and for the same identity. Istio's
// agent sends both at once; its token would never be looked at.
func TokenForOld(next, tokens auth.Authenticator, maxAge time.Duration, clock Clock) auth.Authenticator {
	return tokenForOld{next: next, tokens: tokens, maxAge: maxAge, clock: clock}
}

type tokenForOld struct {
	next, tokens auth.Authenticator
	maxAge       time.Duration
	clock        Clock
}

func (t tokenForOld) Authenticate(ctx context.Context) (auth.Peer, error) {
	who, err := t.next.Authenticate(ctx)
	if err != nil || who.Method != auth.MethodMTLS || t.clock.Now().Sub(Proven(ctx)) <= t.maxAge {
		return who, err
	}
	if byToken, err := t.tokens.Authenticate(ctx); err == nil && byToken.ID == who.ID {
		return byToken, nil
	}
	return who, nil
}
