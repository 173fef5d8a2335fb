package jwks

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/jwks"
	"fairlead.dev/proto/fairlead/contract"
)

// FuzzAnswers fetches whatever an issuer may answer: there are keys in their one form, or a reason why there are none,
// and the next fetch is within bounds.
func FuzzAnswers(f *testing.F) {
	const keys = `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
	f.Add([]byte(`{"jwks_uri":"URL/keys"}`), []byte(keys), 200, "max-age=600", "5")
	f.Add([]byte(`{"jwks_uri":"file:///etc/passwd"}`), []byte(`{"keys":[{}]}`), 200, "no-store, max-age=99999999999999", "-1")
	f.Add([]byte(`{"jwks_uri":7}`), []byte(`{"keys":{}}`), 500, `max-age="1`, "x")
	f.Add([]byte(`[`), []byte(`{"a":"-----BEGIN CERTIFICATE-----"}`), 204, ",,=", "")
	f.Add([]byte(`{"jwks_uri":"http://169.254.169.254/"}`), []byte(`{"kty":"oct","k":"AAAA"}`), 302, "max-age=-1", "9223372036854775807")
	var discovery, document []byte
	var status int
	var cacheControl, age string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, discoveryPath) {
			_, _ = w.Write(discovery)
			return
		}
		w.Header().Set("Cache-Control", cacheControl)
		w.Header().Set("Age", age)
		w.WriteHeader(status)
		_, _ = w.Write(document)
	}))
	f.Cleanup(server.Close)
	fetcher, err := NewFetcher(FetcherConfig{
		Addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		Clock:     clock.Or(nil), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, d, k []byte, s int, c, a string) {
		discovery, document, cacheControl, age = []byte(strings.ReplaceAll(string(d), "URL", server.URL)), k, c, a
		status = 200 + (s%300+300)%300 // 1xx are no answers
		for _, source := range []contract.KeySource{{URI: server.URL + "/keys"}, {Issuer: server.URL}} {
			got := fetcher.fetch(t.Context(), source)
			if (got.err == nil) != (got.set.Count > 0) || (got.err == nil) != (got.problem == 0) {
				t.Errorf("%s: %+v", source, got)
			}
			if got.err == nil {
				if again, err := jwks.Parse(got.set.Keys); err != nil || string(again.Keys) != string(got.set.Keys) {
					t.Errorf("%s are not in their form: %s, %v", got.set.Keys, again.Keys, err)
				}
			}
			every := interval(intervals[0], got.maxAge, got.stated)
			if got.maxAge < 0 || every < intervals[0] || every > intervals[len(intervals)-1] {
				t.Errorf("%q, %q: fetched every %s, kept for %s", c, a, every, got.maxAge)
			}
		}
	})
}
