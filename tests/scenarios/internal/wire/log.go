package wire

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"regexp"
)

// Fields are what a proxy writes of each request and connection for Entry and for whoever reads what failed: a JSON
// object with these members.
var Fields = map[string]string{
	"start":      "%START_TIME%",
	"requestID":  "%REQ(X-REQUEST-ID)%",
	"method":     "%REQ(:METHOD)%",
	"path":       "%REQ(:PATH)%",
	"authority":  "%REQ(:AUTHORITY)%",
	"code":       "%RESPONSE_CODE%",
	"details":    "%RESPONSE_CODE_DETAILS%",
	"flags":      "%RESPONSE_FLAGS%",
	"failure":    "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
	"peer":       "%DOWNSTREAM_PEER_URI_SAN%",
	"tls":        "%DOWNSTREAM_TLS_VERSION%",
	"sni":        "%REQUESTED_SERVER_NAME%",
	"remote":     "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
	"local":      "%DOWNSTREAM_LOCAL_ADDRESS%",
	"source":     "%UPSTREAM_LOCAL_ADDRESS%",
	"upstream":   "%UPSTREAM_HOST%",
	"cluster":    "%UPSTREAM_CLUSTER%",
	"connection": "%CONNECTION_ID%",
	"call":       "%REQ(X-SCENARIO-CALL)%",
}

// Entry is a line of a proxy's access log, which it writes as JSON with these members. Envoy's "-" stands for nothing.
type Entry struct {
	// RequestID is x-request-id.
	RequestID string `json:"requestID"`
	// Peer is the URI of the certificate that the downstream showed and the proxy verified.
	Peer string `json:"peer"`
	// TLS is the version of the downstream's TLS.
	TLS string `json:"tls"`
	// Remote is who connected to the proxy, Local where to; Source is where the proxy's own connection to Upstream
	// comes from.
	Remote   string `json:"remote"`
	Local    string `json:"local"`
	Source   string `json:"source"`
	Upstream string `json:"upstream"`
	// Call is the id of the scenario's call.
	Call string `json:"call"`
}

// AccessLog is a proxy's, in a file that grows.
type AccessLog struct {
	// Path is empty if there is none.
	Path string
}

// End is where the log ends now.
func (l AccessLog) End() int64 {
	info, err := os.Stat(l.Path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// After has the whole lines after a place.
func (l AccessLog) After(place int64) ([]Entry, error) {
	if l.Path == "" {
		return nil, nil
	}
	f, err := os.Open(l.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(place, io.SeekStart); err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for {
		line, rest, whole := bytes.Cut(raw, []byte("\n"))
		if !whole {
			return entries, nil
		}
		raw = rest
		var e Entry
		if json.Unmarshal(Unframed(line), &e) == nil { // what is not JSON is not an entry
			e.clean()
			entries = append(entries, e)
		}
	}
}

// framed is what a container runtime writes before each line of a container.
var framed = regexp.MustCompile(`^\S+ (?:stdout|stderr) [FP] `)

// Unframed is what a program has written of a line, in whose log it may have been put by a container runtime.
func Unframed(line []byte) []byte { return line[len(framed.Find(line)):] }

func (e *Entry) clean() {
	for _, field := range []*string{&e.RequestID, &e.Peer, &e.TLS, &e.Remote, &e.Local, &e.Source, &e.Upstream, &e.Call} {
		if *field == "-" {
			*field = ""
		}
	}
}

// From is Remote, RemoteIP its address, and LocalPort Local's port; zero if they cannot be read.
func (e *Entry) From() netip.AddrPort {
	at := place(e.Remote)
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// RemoteIP is who connected.
func (e *Entry) RemoteIP() netip.Addr { return e.From().Addr() }

// LocalPort is the port that the downstream connected to.
func (e *Entry) LocalPort() int { return int(place(e.Local).Port()) }

func place(text string) netip.AddrPort {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.AddrPort{}
	}
	return at
}
