package appprobe

import (
	"strings"
	"testing"
	"time"
)

// What injection writes for a Pod with every kind of probe is read.
func TestParse(t *testing.T) {
	probes, err := Parse(`{
		"/app-health/web/livez":{"httpGet":{"path":"/live?x=1%202","port":8080,"host":"elsewhere","scheme":"HTTPS","httpHeaders":[{"name":"a","value":"b"}]},"timeoutSeconds":7},
		"/app-health/web/readyz":{"tcpSocket":{"port":9090,"host":""}},
		"/app-health/db-0.x/startupz":{"grpc":{"port":7070,"service":"shop"},"timeoutSeconds":1},
		"/app-health/other/startupz":{"grpc":{"port":7070,"service":null}},
		"/app-lifecycle/web/prestopz":{"httpGet":{"path":"bye","port":8080}}}`, 15020)
	if err != nil {
		t.Fatal(err)
	}
	want := []Probe{
		{Path: "/app-health/db-0.x/startupz", Kind: "grpc", Port: 7070, Service: "shop", Timeout: time.Second},
		{Path: "/app-health/other/startupz", Kind: "grpc", Port: 7070, Timeout: time.Second},
		{Path: "/app-health/web/livez", Kind: "httpGet", Port: 8080, TLS: true, Timeout: 7 * time.Second},
		{Path: "/app-health/web/readyz", Kind: "tcpSocket", Port: 9090, Timeout: time.Second},
		{Path: "/app-lifecycle/web/prestopz", Kind: "httpGet", Port: 8080, Timeout: time.Hour},
	}
	if len(probes) != len(want) {
		t.Fatalf("%d probes", len(probes))
	}
	urls := map[int]string{2: "/live?x=1%202", 4: "/bye"}
	for i, p := range probes {
		if got := *p; got.URL != nil && got.URL.String() != urls[i] || (got.URL == nil) != (urls[i] == "") {
			t.Errorf("%s: URL %v, want %q", p.Path, got.URL, urls[i])
		}
		got := *p
		got.URL = nil
		if got != want[i] {
			t.Errorf("got %+v, want %+v", got, want[i])
		}
	}
	if probes, err := Parse("", 15020); err != nil || len(probes) > 0 {
		t.Errorf("nothing: %v %v", probes, err)
	}
}

// Each mistake is named, with the entry and the field.
func TestParseNamesMistakes(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                             `ISTIO_KUBE_APP_PROBERS: want a JSON object`,
		`{"/app-health/web/livez":null}`: `"/app-health/web/livez": null: want an object`,
		`{"/app-health/web/livez":{}}`:   `0 of httpGet, tcpSocket and grpc`,
		`{"/app-health/web/livez":{"exec":{"command":["x"]}}}`:                                            `0 of httpGet, tcpSocket and grpc`,
		`{"/app-health/web/livez":{"httpGet":{"port":1},"tcpSocket":{"port":1}}}`:                         `2 of httpGet, tcpSocket and grpc`,
		`{"/app-health/web/livez":{"httpGet":{"port":"http"}}}`:                                           `port "http": want a number`,
		`{"/app-health/web/livez":{"httpGet":{"path":"/"}}}`:                                              `httpGet.port is missing`,
		`{"/app-health/web/livez":{"tcpSocket":{"port":65536}}}`:                                          `port 65536: want a number`,
		`{"/app-health/web/livez":{"tcpSocket":{"port":15020}}}`:                                          `"/app-health/web/livez": tcpSocket.port 15020 is that of the agent`,
		`{"/app-health/web/livez":{"grpc":{"port":-1}}}`:                                                  `port -1: want a number`,
		`{"/app-health/web/livez":{"httpGet":{"port":1,"scheme":"gopher"}}}`:                              `httpGet.scheme "gopher"`,
		`{"/app-health/web/livez":{"tcpSocket":{"port":1},"timeoutSeconds":-1}}`:                          `timeoutSeconds -1`,
		`{"/app-health/web/livez":{"tcpSocket":{"port":1},"timeoutSeconds":99999}}`:                       `timeoutSeconds 99999`,
		`{"/app-health/a/b/livez":{"tcpSocket":{"port":1}}}`:                                              `want a path such as`,
		`{"/app-health/../livez":{"tcpSocket":{"port":1}}}`:                                               `want a path such as`,
		`{"/app-health/{x}/livez":{"tcpSocket":{"port":1}}}`:                                              `want a path such as`,
		`{"/healthz/ready":{"tcpSocket":{"port":1}}}`:                                                     `want a path such as`,
		`{"/app-health/a/livez":{"tcpSocket":{"port":0}},"/app-health/b/livez":{"tcpSocket":{"port":0}}}`: `/app-health/b/livez`,
		strings.Repeat(" ", maxText+1):                                                                    `at most`,
	} {
		if _, err := Parse(text, 15020); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: error %v, want %q", text, err, want)
		}
	}
}

// Whatever the annotation's author writes, Parse returns probes that a handler can be made of, or an error.
func FuzzParse(f *testing.F) {
	f.Add(`{"/app-health/web/livez":{"httpGet":{"path":"/live","port":8080,"scheme":"HTTPS"},"timeoutSeconds":7}}`)
	f.Add(`{"/app-lifecycle/web/prestopz":{"grpc":{"port":1,"service":"x"}}}`)
	f.Add(`{"/app-health/web/readyz":{"tcpSocket":{"port":"8080"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		probes, err := Parse(text, 15020)
		if err != nil && len(probes) > 0 {
			t.Fatal("probes and an error")
		}
		for _, p := range probes {
			if p.Port == 0 || p.Timeout <= 0 || p.Timeout > maxTimeout || (p.URL == nil) != (p.Kind != "httpGet") {
				t.Fatalf("%+v", p)
			}
			if p.URL != nil && (p.URL.Host != "" || p.URL.Scheme != "" || !strings.HasPrefix(p.URL.Path, "/")) {
				t.Fatalf("URL %#v", p.URL)
			}
		}
	})
}
