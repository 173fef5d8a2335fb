package catalog

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestHeadersThatAreNotBelieved(t *testing.T) {
	waiting, certain := query{index: 5, wait: time.Minute}, query{certain: true}
	for name, tc := range map[string]struct {
		q      query
		header map[string]string
		says   string
	}{
		"a waiting one":              {waiting, nil, ""},
		"a certain one":              {certain, nil, ""},
		"of a page":                  {waiting, map[string]string{"Content-Type": "text/html"}, "no Consul agent is there"},
		"without a type":             {waiting, map[string]string{"Content-Type": ""}, "no Consul agent is there"},
		"without an index":           {waiting, map[string]string{"X-Consul-Index": ""}, "without X-Consul-Index"},
		"with a text for an index":   {waiting, map[string]string{"X-Consul-Index": "-1"}, "without X-Consul-Index"},
		"with index 0":               {certain, map[string]string{"X-Consul-Index": "0"}, "X-Consul-Index 0"},
		"without a leader":           {waiting, map[string]string{"X-Consul-KnownLeader": "false"}, "no leader"},
		"of a stream":                {waiting, map[string]string{"X-Consul-KnownLeader": "false", "X-Consul-Query-Backend": "streaming"}, ""},
		"certain, of a stream":       {certain, map[string]string{"X-Consul-Query-Backend": "streaming"}, "from a cache"},
		"certain, of a cache":        {certain, map[string]string{"X-Cache": "HIT"}, "from a cache"},
		"of a server that was alone": {waiting, map[string]string{"X-Consul-LastContact": "5001"}, "not heard of a leader for 5.001s"},
		"of one that was not":        {waiting, map[string]string{"X-Consul-LastContact": "5000"}, ""},
		"with a text for a contact":  {waiting, map[string]string{"X-Consul-LastContact": "never"}, "X-Consul-LastContact"},
	} {
		t.Run(name, func(t *testing.T) {
			resp := answer(200, "[]", http.Header{})
			for header, value := range map[string]string{
				"Content-Type": "application/json", "X-Consul-Index": "7", "X-Consul-KnownLeader": "true", "X-Consul-LastContact": "0",
			} {
				resp.Header.Set(header, value)
			}
			for header, value := range tc.header {
				resp.Header.Set(header, value)
			}
			m, err := check(resp, tc.q)
			if tc.says == "" && (err != nil || m.index != 7) || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("%+v, %v, want %q", m, err, tc.says)
			}
		})
	}
}

func TestNamesAreEscaped(t *testing.T) {
	for name, want := range map[string]string{
		"web": "/v1/health/service/web", "a/b?c#d%e ü": "/v1/health/service/a%2Fb%3Fc%23d%25e%20%C3%BC",
	} {
		u := url.URL{Path: servicePath + name, RawPath: escape(servicePath + name)}
		if got := u.RequestURI(); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
