package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/rundir"
)

// askTimeout bounds one question to an operations port.
const askTimeout = 5 * time.Second

// maxAnswer bounds what an operations port may answer.
const maxAnswer = 256 << 20

// refusedError is an answer of an operations port that is none.
type refusedError struct {
	address string
	status  int
	message string
}

// Error implements error.
func (e *refusedError) Error() string {
	if e.message != "" {
		return e.message
	}
	return fmt.Sprintf("%s answered %d %s", e.address, e.status, http.StatusText(e.status))
}

// askOps reads a page of a service's operations port into out.
func askOps(ctx context.Context, address, tokenFile, path string, query url.Values, out any) error {
	token, err := rpc.ReadToken(tokenFile)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	target := url.URL{Scheme: "http", Host: address, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body := json.NewDecoder(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode != http.StatusOK {
		var failure struct {
			Error string `json:"error"`
		}
		_ = body.Decode(&failure) // not ours: then the status has to do
		return &refusedError{address, res.StatusCode, failure.Error}
	}
	return body.Decode(out)
}

// xdsServer is the operations port of an xds-server.
type xdsServer struct{ name, address string }

// xdsServers lists the xds-servers: those of the flags, else those of the run directory, the named one first.
func (t *target) xdsServers(named string) (servers []xdsServer, tokenFile string, err error) {
	for _, address := range t.xdsAddresses {
		servers = append(servers, xdsServer{address, address})
	}
	if len(servers) > 0 && t.tokenFile != "" {
		return servers, t.tokenFile, nil
	}
	if len(servers) == 0 && t.address != "" {
		return nil, "", usage(errors.New("--config-watcher-address alone does not tell where the xds-servers are; add --xds-server-address"))
	}
	state, err := t.state()
	if err != nil {
		return nil, "", err
	}
	tokenFile = t.tokenFile
	orDefault(&tokenFile, state.AdminTokenFile)
	if len(servers) > 0 {
		return servers, tokenFile, nil
	}
	for _, s := range state.Services {
		if s.Program == "xds-server" {
			servers = append(servers, xdsServer{s.Name, s.OpsAddress})
		}
	}
	for i, s := range servers {
		if s.name == named {
			servers[0], servers[i] = servers[i], servers[0]
		}
	}
	if len(servers) == 0 {
		return nil, "", fmt.Errorf("run directory %s names no xds-server", state.RunDir)
	}
	return servers, tokenFile, nil
}

// connection is a connected proxy and who may be asked about it.
type connection struct {
	nodeID    string
	servers   []xdsServer
	tokenFile string
}

// connect finds a proxy by "<pod>.<namespace>" or a beginning of it that only one has. config-watcher knows which xds-server it is connected
// to; where the flags name xds-servers only, each is asked, and the name must be whole.
func (t *target) connect(ctx context.Context, name string) (*connection, error) {
	if len(t.xdsAddresses) > 0 && t.address == "" {
		servers, tokenFile, err := t.xdsServers("")
		return &connection{name, servers, tokenFile}, err
	}
	res, err := t.listProxies(ctx, "")
	if err != nil {
		return nil, err
	}
	kept, err := choose(res.GetProxies(), name)
	if err != nil {
		return nil, err
	}
	if len(kept) > 1 {
		ambiguous := &rundir.AmbiguousError{Name: name}
		for _, p := range kept {
			ambiguous.Matches = append(ambiguous.Matches, proxyName(p.GetNodeId()))
		}
		return nil, ambiguous
	}
	servers, tokenFile, err := t.xdsServers(serverName(kept[0]))
	return &connection{kept[0].GetNodeId(), servers, tokenFile}, err
}

// serverName is the process that a proxy is connected to, "xds-server-0" of "xds-server-0/7c1f".
func serverName(p *configv1.ProxyStatus) string {
	name, _, _ := strings.Cut(p.GetXdsServer(), "/")
	return name
}

// ask reads a page about the proxy from the xds-server that it is connected to.
func (c *connection) ask(ctx context.Context, path string, query url.Values, out any) error {
	query.Set("proxy", c.nodeID)
	var away []error
	for _, s := range c.servers {
		err := askOps(ctx, s.address, c.tokenFile, path, query, out)
		no := new(refusedError)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &no) && no.status == http.StatusUnauthorized, errors.As(err, &no) && no.status == http.StatusForbidden:
			return fmt.Errorf("%s does not allow it: %w; use the token of the run directory, or name one of service account fairlead-admin with --token-file",
				s.name, err)
		case errors.As(err, &no) && no.status != http.StatusNotFound:
			return fmt.Errorf("%s: %w", s.name, err)
		}
		away = append(away, fmt.Errorf("%s: %w", s.name, err))
	}
	return fmt.Errorf("no xds-server knows proxy %q:\n  %w", proxyName(c.nodeID), errors.Join(away...))
}

// listProxies asks config-watcher for the fleet.
func (t *target) listProxies(ctx context.Context, namespace string) (*configv1.ListProxiesResponse, error) {
	client, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := client.ListProxies(ctx, &configv1.ListProxiesRequest{Namespace: namespace})
	if err != nil {
		return nil, exit(client.Explain(err))
	}
	if namespace != "" && len(res.GetProxies())+len(res.GetRefusals()) == 0 {
		// There may be none in it; one that does not exist is a mistake.
		_, err := client.List(ctx, &configv1.ListRequest{Namespace: namespace, InForce: true, WithoutManifests: true})
		if status.Code(err) == codes.NotFound {
			return nil, client.Explain(err)
		}
	}
	return res, nil
}
