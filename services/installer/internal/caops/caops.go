// Package caops asks the ca of a mesh how it stands, follows a rotation, and gives the ca an operator's commands
// (package caapi has their JSON). Client reaches the replicas of the ca, Lines and Summary say a status in words, and
// Order is what the flags of `fairlead ca rotate` and `swap` mean. Package cli/ca calls them.
package caops

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/opsclient"
)

// Client asks the ca of a mesh.
type Client struct{ mesh *meshclient.Mesh }

// New returns a client of the mesh's ca. Nothing is asked.
func New(mesh *meshclient.Mesh) *Client { return &Client{mesh} }

// Status is how the ca stands, by the replica that leads. If that one does not answer, it is what another replica says,
// whose name is in Status.Replica.
func (c *Client) Status(ctx context.Context) (*caapi.Status, error) {
	status, _, err := c.find(ctx)
	return status, err
}

// Send gives the ca a command, by the replica that leads if it answers, and returns the status after it. Nothing is
// sent twice.
func (c *Client) Send(ctx context.Context, command caapi.Command) (*caapi.Status, error) {
	_, server, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	after := &caapi.Status{}
	err = server.Ops.Post(ctx, caapi.CommandPath, command, after)
	if no := new(opsclient.StatusError); err != nil && !errors.As(err, &no) {
		return nil, fmt.Errorf("%s: %w; whether it has taken the command is not known: `fairlead ca status` says how it stands", server.Name, err)
	}
	if err != nil {
		return nil, explain(server.Name, err)
	}
	return after, nil
}

// find asks one replica after the other until one answers, and then the one that leads by its word.
func (c *Client) find(ctx context.Context) (*caapi.Status, meshclient.Server, error) {
	servers, err := c.mesh.CAs(ctx)
	if err != nil {
		return nil, meshclient.Server{}, err
	}
	var away []error
	for _, server := range servers {
		status, err := ask(ctx, server)
		if err != nil {
			away = append(away, err)
			continue
		}
		i := slices.IndexFunc(servers, func(s meshclient.Server) bool { return s.Is(status.Leader) })
		if i < 0 || status.Leader == status.Replica {
			return status, server, nil
		}
		if of, err := ask(ctx, servers[i]); err == nil {
			return of, servers[i], nil
		}
		return status, server, nil
	}
	return nil, meshclient.Server{}, errors.Join(away...)
}

func ask(ctx context.Context, server meshclient.Server) (*caapi.Status, error) {
	status := &caapi.Status{}
	if err := server.Ops.Get(ctx, caapi.StatusPath, nil, status); err != nil {
		return nil, explain(server.Name, err)
	}
	return status, nil
}

// explain adds to the error of a replica what can be done. A command that the ca refuses because of what it says, and
// not of the state, has the exit code for refused input.
func explain(name string, err error) error {
	no := new(opsclient.StatusError)
	if !errors.As(err, &no) {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s has not answered within %s: %w; see its log", name, opsclient.Timeout, err)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	switch no.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s does not allow it: %w; use the token of the run directory, or name one of service account fairlead-admin with "+
			"--token-file", name, err)
	case http.StatusNotFound:
		return fmt.Errorf("%s is of a version that cannot rotate; upgrade the control plane first: `fairlead upgrade`, or start `fairlead up` "+
			"again with newer programs", name)
	case http.StatusBadRequest:
		return process.Refusedf("%s: %w", name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}
