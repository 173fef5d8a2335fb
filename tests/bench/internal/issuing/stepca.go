package issuing

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/sys/unix"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/process"
)

// leafTemplate makes of a request the certificate that the others issue.
const leafTemplate = `{"subject": {}, "sans": {{ toJson .SANs }}, "keyUsage": ["digitalSignature"], "extKeyUsage": ["serverAuth", "clientAuth"]}`

// StepCA is a running step-ca.
type StepCA struct {
	*machine.Process

	url       string
	authority *Authority
	key       jose.JSONWebKey
}

// StartStepCA runs step-ca without a database, which is how it is fastest: it then remembers neither certificates nor
// used tokens.
func StartStepCA(ctx context.Context, program string, a *Authority, on *unix.CPUSet) (*StepCA, error) {
	dir, err := os.MkdirTemp(filepath.Dir(a.Dir), "step-")
	if err != nil {
		return nil, err
	}
	ports, err := machine.FreePorts(1)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	s := &StepCA{url: "https://" + ports[0], authority: a,
		key: jose.JSONWebKey{Key: key, Algorithm: string(jose.ES256), Use: "sig", KeyID: "one"}}
	config, err := json.Marshal(map[string]any{
		"root": a.File("root-cert.pem"), "crt": a.File("ca-cert.pem"), "key": a.File("ca-key.pem"), "address": ports[0],
		"dnsNames": []string{"127.0.0.1"},
		"authority": map[string]any{"provisioners": []any{map[string]any{
			"type": "JWK", "name": "bench", "key": s.key.Public(), "options": map[string]any{"x509": map[string]any{"template": leafTemplate}},
		}}},
	})
	if err != nil {
		return nil, err
	}
	file, log := filepath.Join(dir, "ca.json"), filepath.Join(dir, "step-ca.log")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	if s.Process, err = machine.Start(process.Program{
		Name: "step-ca", Path: program, Args: []string{file}, Env: []string{"STEPPATH=" + dir}, Stdout: log, Stderr: log,
	}, on); err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: a.Roots(), MinVersion: tls.VersionTLS13}}
	err = s.Until(ctx, readyWithin, func() error {
		conn, err := dialer.DialContext(ctx, "tcp", ports[0])
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		s.Stop()
	}
	return s, err
}

// Clients are those of step-ca's API: each keeps a connection and makes a one-time token for each request.
func (s *StepCA) Clients(_ context.Context, workloads []*Workload) ([]Ask, error) {
	out := make([]Ask, 0, len(workloads))
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: s.key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, err
	}
	for _, w := range workloads {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: s.authority.Roots(), MinVersion: tls.VersionTLS13}, MaxConnsPerHost: 1, ForceAttemptHTTP2: true,
		}}
		block, _ := pem.Decode([]byte(w.CSR))
		sum := sha256.Sum256(block.Bytes)
		out = append(out, func(ctx context.Context) error {
			now := time.Now()
			token, err := jwt.Signed(signer).Claims(map[string]any{
				"iss": "bench", "aud": s.url + "/1.0/sign", "sub": w.Account, "sans": []string{w.URI().String()}, "jti": rand.Text(),
				"iat": now.Unix(), "nbf": now.Add(-time.Second).Unix(), "exp": now.Add(time.Minute).Unix(),
				"cnf": map[string]string{"x5rt#S256": base64.RawURLEncoding.EncodeToString(sum[:])},
			}).Serialize()
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]string{"csr": w.CSR, "ott": token})
			if err != nil {
				return err
			}
			return s.post(ctx, client, body)
		})
	}
	return out, nil
}

func (s *StepCA) post(ctx context.Context, client *http.Client, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/1.0/sign", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil && answer.StatusCode != http.StatusCreated {
		err = errors.New(string(text))
	}
	if err != nil {
		return fmt.Errorf("step-ca: %s: %w", answer.Status, err)
	}
	return nil
}
