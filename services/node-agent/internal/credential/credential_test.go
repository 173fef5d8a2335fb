package credential

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/testkit"
)

// jwt is a token whose signature nobody verifies.
func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func TestMetadataServerGivesAToken(t *testing.T) {
	for name, tc := range map[string]struct {
		body, flavor string
		status       int
		want         string
	}{
		"good":           {jwt(`{"exp": 4102444800}`) + "\n", "Google", 200, ""},
		"another server": {jwt(`{"exp": 4102444800}`), "", 200, "is not that of one of Google"},
		"refused":        {"no account", "Google", 404, "answers 404"},
		"no JWT":         {"<html>", "Google", 200, "not a JWT"},
		"no expiry":      {jwt(`{}`), "Google", 200, "when it expires"},
		"too long":       {strings.Repeat("a", maxToken+1), "Google", 200, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get(flavor) != "Google" || r.URL.Query().Get("audience") != "project.svc.id.goog" || r.URL.Query().Get("format") != "full" {
					t.Errorf("asked for %s with %v", r.URL, r.Header)
				}
				w.Header().Set(flavor, tc.flavor)
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.body))
			}))
			t.Cleanup(server.Close)
			g := &Google{
				client: fetch.New(fetch.Config{Plain: true, MaxBytes: maxToken,
					Addresses: fetch.Addresses{Only: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}}),
				url: server.URL + query("project.svc.id.goog"),
			}
			token, expiry, err := g.Fetch(t.Context())
			if tc.want == "" && (err != nil || token != strings.TrimSpace(tc.body) || expiry.Unix() != 4102444800) {
				t.Errorf("got %q %v %v", token, expiry, err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestOnlyTheMetadataServerIsAsked(t *testing.T) {
	g := NewGoogle("x")
	if !strings.HasPrefix(g.url, "http://169.254.169.254/") {
		t.Errorf("URL %s", g.url)
	}
	g.url = "http://127.0.0.1:1/"
	if _, _, err := g.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "none of [169.254.169.254/32]") {
		t.Errorf("got %v", err)
	}
}

// turns gives one answer after the other; an error if it has none left.
type turns struct {
	clock *testkit.Clock
	n     int
	fails bool
}

func (f *turns) Fetch(context.Context) (string, time.Time, error) {
	if f.fails = !f.fails; f.fails {
		return "", time.Time{}, errors.New("away")
	}
	f.n++
	return fmt.Sprintf("token %d", f.n), f.clock.Now().Add(time.Hour), nil
}

func TestTokenFileIsRenewed(t *testing.T) {
	clock := testkit.NewClock(time.Now())
	path := filepath.Join(t.TempDir(), "token")
	testkit.Background(t, Keeper{From: &turns{clock: clock}, Path: path, Log: testkit.Logger(t), Clock: clock}.Run)
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{0, ""}, {time.Second, "token 1"}, {30 * time.Minute, "token 1"}, {10 * time.Minute, "token 1"}, {time.Second, "token 2"}} {
		clock.WaitFor(t, 1)
		clock.Advance(step.after)
		testkit.Eventually(t, testkit.Patience, func() error {
			raw, err := os.ReadFile(path)
			if step.want == "" && os.IsNotExist(err) {
				return nil
			}
			if err == nil && string(raw) != step.want {
				err = fmt.Errorf("after %s it is %q, want %q", step.after, raw, step.want)
			}
			return err
		})
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

func FuzzExpiry(f *testing.F) {
	f.Add(jwt(`{"exp": 1}`))
	f.Add("a..b")
	f.Fuzz(func(t *testing.T, token string) {
		if at, err := expiryOf(token); err == nil && at.Unix() <= 0 {
			t.Errorf("expires at %s", at)
		}
	})
}
