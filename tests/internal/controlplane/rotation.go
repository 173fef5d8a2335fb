package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
)

// Rotation asks the ca as an administrator how it stands, or gives it a command.
func (p *Plane) Rotation(ctx context.Context, client *http.Client, command *caapi.Command) (*caapi.Status, error) {
	token, err := p.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
	if err != nil {
		return nil, err
	}
	method, page, body := http.MethodGet, caapi.StatusPath, []byte(nil)
	if command != nil {
		method, page = http.MethodPost, caapi.CommandPath
		if body, err = json.Marshal(command); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.CA.Ops+page, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	if err != nil {
		return nil, err
	}
	s := &caapi.Status{}
	return s, json.Unmarshal(answer, s)
}
