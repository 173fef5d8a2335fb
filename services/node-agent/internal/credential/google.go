// Package credential gets the token by which the agent authenticates to the control plane where no file has one: from a
// cloud's metadata server. Keeper writes it to a private file and renews it, so that whoever reads a token file needs
// no other way. Package app calls both if CREDENTIAL_FETCHER_TYPE asks for it.
package credential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"fairlead.dev/pkg/fetch"
)

// metadataURL is the instance's identity token, by the address of the metadata server: its name may resolve to
// anything.
const metadataURL = "http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/identity"

// flavor is the header by which the metadata server and its clients know each other; a page in a browser, or a server
// that is tricked into a request, cannot set it.
const flavor = "Metadata-Flavor"

// maxToken bounds a token in bytes.
const maxToken = 16 << 10

// Google gets the identity token of a machine of Google Compute Engine.
type Google struct {
	client *fetch.Client
	url    string
}

// NewGoogle makes a Google whose tokens are for an audience. It connects to the metadata server alone.
func NewGoogle(audience string) *Google {
	return &Google{
		client: fetch.New(fetch.Config{
			Plain: true, MaxBytes: maxToken,
			Addresses: fetch.Addresses{Only: true, Allow: []netip.Prefix{netip.MustParsePrefix("169.254.169.254/32")}},
		}),
		url: metadataURL + query(audience),
	}
}

func query(audience string) string {
	return "?" + url.Values{"audience": {audience}, "format": {"full"}}.Encode()
}

// Fetch returns a token and when it expires.
func (g *Google) Fetch(ctx context.Context) (string, time.Time, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, http.NoBody)
	if err != nil {
		return "", time.Time{}, err
	}
	r.Header.Set(flavor, "Google")
	answer, err := g.client.Do(r)
	switch {
	case err != nil:
		return "", time.Time{}, fmt.Errorf("metadata server: %w", err)
	case answer.Status != http.StatusOK:
		return "", time.Time{}, fmt.Errorf("metadata server: it answers %d", answer.Status)
	case answer.Header.Get(flavor) != "Google":
		return "", time.Time{}, errors.New("metadata server: the answer is not that of one of Google Compute Engine")
	}
	token := strings.TrimSpace(string(answer.Body))
	expiry, err := expiryOf(token)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("metadata server: %w", err)
	}
	return token, expiry, nil
}

// expiryOf reads when a JWT expires. It verifies nothing: whoever the token is shown to does.
func expiryOf(token string) (time.Time, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || len(token) > maxToken {
		return time.Time{}, errors.New("the answer is not a JWT")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, errors.New("the answer is not a JWT")
	}
	var claims struct {
		Expiry int64 `json:"exp"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil || claims.Expiry <= 0 {
		return time.Time{}, errors.New("the token does not say when it expires")
	}
	return time.Unix(claims.Expiry, 0), nil
}
