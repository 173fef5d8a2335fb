package dashboard

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The port of a dashboard is open to all users of the machine, who see the arguments of a browser, and to pages of
// other ports, whose requests have the cookie.
func TestPagesNeedTheKeyOfTheRun(t *testing.T) {
	keys := newPageKeys()
	pages := keys.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "page "+r.URL.RequestURI())
	}))
	ask := func(method, target, cookie, site string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, target, http.NoBody)
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: pageKey, Value: cookie})
		}
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		return w
	}
	cookie := func(key string) string {
		t.Helper()
		w := ask(http.MethodGet, "/stats?format=json&"+pageKey+"="+key, "", "none")
		if w.Code != http.StatusFound || w.Header().Get("Location") != "/stats?format=json" {
			t.Fatalf("a key of the run: %d, to %s", w.Code, w.Header().Get("Location"))
		}
		_, rest, _ := strings.Cut(w.Header().Get("Set-Cookie"), "=")
		value, _, _ := strings.Cut(rest, ";")
		return value
	}
	has := cookie(keys.once)
	cookie(keys.printed)
	cookie(keys.printed)
	for name, tc := range map[string]struct {
		method, target, cookie, site string
		code                         int
	}{
		"the cookie":                                {http.MethodGet, "/", has, "same-origin", http.StatusOK},
		"the browser's key with the cookie":         {http.MethodGet, "/?" + pageKey + "=" + keys.once, has, "none", http.StatusOK},
		"a change by a page of its own":             {http.MethodPost, "/quitquitquit", has, "same-origin", http.StatusOK},
		"a change by a program":                     {http.MethodPost, "/quitquitquit", has, "", http.StatusOK},
		"the browser's key, by whom has seen it":    {http.MethodGet, "/?" + pageKey + "=" + keys.once, "", "", http.StatusForbidden},
		"a change by a page of another port":        {http.MethodPost, "/quitquitquit", has, "same-site", http.StatusForbidden},
		"a change by a page of another site":        {http.MethodPost, "/quitquitquit", has, "cross-site", http.StatusForbidden},
		"no key":                                    {http.MethodGet, "/", "", "", http.StatusForbidden},
		"a key that is none":                        {http.MethodGet, "/?" + pageKey + "=x", "", "", http.StatusForbidden},
		"the key of a URL in the place of a cookie": {http.MethodGet, "/", keys.printed, "", http.StatusForbidden},
	} {
		if got := ask(tc.method, tc.target, tc.cookie, tc.site); got.Code != tc.code {
			t.Errorf("%s: %d %s, want %d", name, got.Code, got.Body, tc.code)
		}
	}
}
