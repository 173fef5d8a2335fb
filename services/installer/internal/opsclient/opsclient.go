// Package opsclient reads JSON pages of the operations ports of Fairlead's services (pkg/ops serves them). Get is
// called by the commands of cli that ask xds-servers, and by local for the table of `fairlead up`.
package opsclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"fairlead.dev/pkg/rpc"
)

// Timeout bounds one Get.
const Timeout = 5 * time.Second

// maxAnswerBytes bounds what Get reads of an answer.
const maxAnswerBytes = 256 << 20

// StatusError is an answer with another status than 200.
type StatusError struct {
	address string
	Code    int
	message string
}

// Error implements error with the service's own message, if it sent one.
func (e *StatusError) Error() string {
	if e.message != "" {
		return e.message
	}
	return fmt.Sprintf("%s answered %d %s", e.address, e.Code, http.StatusText(e.Code))
}

// Get decodes a page of the operations port at address into out. tokenFile holds an administrator's JWT, which /debug/
// asks for. An answer other than 200 is a *StatusError.
func Get(ctx context.Context, address, tokenFile, path string, query url.Values, out any) error {
	token, err := rpc.ReadToken(tokenFile)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	page := url.URL{Scheme: "http", Host: address, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body := json.NewDecoder(io.LimitReader(res.Body, maxAnswerBytes))
	if res.StatusCode != http.StatusOK {
		var failure struct {
			Error string `json:"error"`
		}
		_ = body.Decode(&failure) // an answer that is no JSON leaves the status as the message
		return &StatusError{address, res.StatusCode, failure.Error}
	}
	return body.Decode(out)
}
