package probe

import (
	"crypto/tls"
	"errors"
	"net/http"
	"time"
)

const (
	// MaxBody bounds what is read of an application's answer, as kubelet does.
	MaxBody = 10 << 10
	// maxHeaders bounds the headers of an answer.
	maxHeaders = 32 << 10
	// maxRedirects is how many redirects to the same host a probe follows.
	maxRedirects     = 10
	handshakeTimeout = 10 * time.Second
)

// HTTPOptions of NewHTTP.
type HTTPOptions struct {
	Dialer Dialer
	// KeepAlive keeps the application's connections for the next probe; kubelet closes them.
	KeepAlive bool
	// HTTP1 leaves HTTP/2 out for HTTPS.
	HTTP1 bool
}

// NewHTTP makes the client for HTTP and HTTPS probes. As kubelet's it verifies no certificates, follows redirects to
// the same host, and returns the redirect itself if it leads elsewhere. The caller bounds the time by the context.
func NewHTTP(o HTTPOptions) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: o.Dialer.DialContext,
			//nolint:gosec // as kubelet: the application's certificate is for others, and the connection stays in the Pod
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true},
			TLSHandshakeTimeout:    handshakeTimeout,
			DisableKeepAlives:      !o.KeepAlive,
			DisableCompression:     true,
			ForceAttemptHTTP2:      !o.HTTP1,
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: maxHeaders,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			switch {
			case next.URL.Hostname() != via[0].URL.Hostname():
				return http.ErrUseLastResponse
			case len(via) >= maxRedirects:
				return errors.New("more than 10 redirects")
			}
			return nil
		},
	}
}
