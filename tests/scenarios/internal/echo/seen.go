package echo

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// CallHeader marks each request of a caller with an id of its own, which retries and mirrored copies share.
const CallHeader = "x-scenario-call"

// keptBody is how much of a body an answer repeats.
const keptBody = 8 << 10

// Seen is what an application saw of one request, and its answer.
type Seen struct {
	Workload string `json:"workload"`
	// Port and App are the name and the kind of the port.
	Port string `json:"port"`
	App  string `json:"app"`
	// Call is the caller's id for the request.
	Call   string `json:"call,omitempty"`
	Method string `json:"method,omitempty"`
	// Path is the request target as it came, with its query.
	Path string `json:"path"`
	Host string `json:"host,omitempty"`
	// Version is 1.0, 1.1 or 2; empty for the line protocol.
	Version string `json:"version,omitempty"`
	// Headers have canonical names.
	Headers    http.Header `json:"headers,omitempty"`
	Body       string      `json:"body,omitempty"`
	BodyLength int64       `json:"bodyLength"`
	LocalIP    string      `json:"localIP"`
	LocalPort  int         `json:"localPort"`
	SourceIP   string      `json:"sourceIP"`
	SourcePort int         `json:"sourcePort"`
	TLS        *TLS        `json:"tls,omitempty"`
	// Status is what the application answered, an HTTP status or a gRPC code.
	Status int `json:"status"`
	// Attempt counts the requests with this x-request-id in this application, or the lines of this connection, from 1.
	Attempt int `json:"attempt"`
	// Connection is the connection's number in this application, from 1, and Accepted when it was accepted.
	Connection int       `json:"connection"`
	Accepted   time.Time `json:"accepted"`
	// Number is the request's number in this application, from 1, and Time when it came.
	Number int       `json:"number"`
	Time   time.Time `json:"time"`
	// Greeting is true for what a server says unasked.
	Greeting bool `json:"greeting,omitempty"`
}

// Shadow tells whether the host says that the request is a mirrored copy.
func (s *Seen) Shadow() bool {
	host, _, _ := strings.Cut(s.Host, ":")
	return strings.HasSuffix(host, "-shadow")
}

// TLS is the application's own.
type TLS struct {
	SNI  string `json:"sni,omitempty"`
	ALPN string `json:"alpn,omitempty"`
	// Version is 1.2 or 1.3.
	Version string `json:"version"`
	// PeerURI and PeerSubject are those of the client's verified certificate.
	PeerURI     string `json:"peerURI,omitempty"`
	PeerSubject string `json:"peerSubject,omitempty"`
}

// Line is a request of the line protocol: one JSON object and a newline, answered by a Seen and a newline. No byte of
// it can be taken for HTTP or TLS.
type Line struct {
	Call string `json:"call"`
	// Path has the parameters in its query.
	Path string `json:"path"`
	Body string `json:"body,omitempty"`
}

// Decode finds the Seen in an answer; nil if the answer is not of this application.
func Decode(body []byte) *Seen {
	var s Seen
	if len(body) == 0 || body[0] != '{' || json.Unmarshal(body, &s) != nil || s.Workload == "" {
		return nil
	}
	return &s
}

func decodeLine(raw []byte, into *Line) bool {
	return len(raw) > 0 && raw[0] == '{' && json.Unmarshal(raw, into) == nil
}
