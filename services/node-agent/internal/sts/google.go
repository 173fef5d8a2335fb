package sts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
)

// Google's endpoints. %s is the project's number.
const (
	googleFederatedToken = "https://sts.googleapis.com/v1/token"
	googleAccessToken    = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/service-%s@gcp-sa-meshdataplane.iam.gserviceaccount.com:generateAccessToken"
	cloudPlatform        = "https://www.googleapis.com/auth/cloud-platform"
)

// Retries of a request that Google's server could not answer.
const (
	googleAttempts = 3
	googlePause    = 200 * time.Millisecond
)

// GoogleConfig of a Google.
type GoogleConfig struct {
	// TrustDomain and Provider make the audience, "identitynamespace:<trust domain>:<provider>"; Provider is the URL of
	// the cluster or the name of another provider of the identity pool.
	TrustDomain, Provider string
	// ProjectNumber is that of the project whose service account the access token is for.
	ProjectNumber string
	Client        *fetch.Client
	Clock         clock.Clock
	// FederatedURL and AccessURL are Google's unless a test has others.
	FederatedURL, AccessURL string
}

// Google is the plugin GoogleTokenExchange: it exchanges the workload's token for a federated token, and that for an
// access token of the mesh's service account.
type Google struct{ cfg GoogleConfig }

// NewGoogle makes a Google.
func NewGoogle(c GoogleConfig) *Google {
	c.Clock = clock.Or(c.Clock)
	c.FederatedURL = cmp.Or(c.FederatedURL, googleFederatedToken)
	c.AccessURL = cmp.Or(c.AccessURL, fmt.Sprintf(googleAccessToken, c.ProjectNumber))
	return &Google{c}
}

// Exchange implements Plugin.
func (g *Google) Exchange(ctx context.Context, r Request) (Token, error) {
	scope := cmp.Or(r.Scope, cloudPlatform)
	audience := cmp.Or(r.Audience, "identitynamespace:"+g.cfg.TrustDomain+":"+g.cfg.Provider)
	var federated struct {
		Token     string `json:"access_token"`
		ExpiresIn int64  `json:"expires_in"`
	}
	if err := g.post(ctx, "federated token", g.cfg.FederatedURL, "", map[string]any{
		"audience": audience, "grantType": grantTokenExchange, "requestedTokenType": typeAccessToken,
		"subjectTokenType": typeJWT, "subjectToken": r.SubjectToken, "scope": scope,
	}, &federated); err != nil {
		return Token{}, err
	}
	if federated.Token == "" {
		return Token{}, errors.New("federated token: the answer has none")
	}
	var access struct {
		Token  string    `json:"accessToken"`
		Expiry time.Time `json:"expireTime"`
	}
	if err := g.post(ctx, "access token", g.cfg.AccessURL, federated.Token, map[string]any{
		"scope": strings.Fields(scope), "lifetime": "3600s",
	}, &access); err != nil {
		return Token{}, err
	}
	if access.Token == "" || !access.Expiry.After(g.cfg.Clock.Now()) {
		return Token{}, errors.New("access token: the answer has none that is valid")
	}
	return Token{access.Token, access.Expiry}, nil
}

// post sends JSON and decodes the answer. It tries again where the server fails.
func (g *Google) post(ctx context.Context, what, url, bearer string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := g.attempt(ctx, what, url, bearer, text, into)
		if _, refused := errors.AsType[Refused](err); err == nil || refused || attempt == googleAttempts {
			return err
		}
		if !clock.Sleep(ctx, g.cfg.Clock, googlePause<<attempt) {
			return err
		}
	}
}

func (g *Google) attempt(ctx context.Context, what, url, bearer string, body []byte, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	answer, err := g.cfg.Client.Do(r)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case answer.Status == http.StatusTooManyRequests || answer.Status >= 500:
		return fmt.Errorf("%s: the server answers %d", what, answer.Status)
	case answer.Status != http.StatusOK:
		// The body is not passed on: a server may repeat the token in it.
		return Refused{fmt.Sprintf("%s: the server refuses the exchange with status %d", what, answer.Status)}
	}
	if err := json.Unmarshal(answer.Body, into); err != nil {
		return fmt.Errorf("%s: the answer is not the JSON that is expected: %w", what, err)
	}
	return nil
}
