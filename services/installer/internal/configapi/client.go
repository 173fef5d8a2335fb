// Package configapi is the installer's client of config-watcher's gRPC API: ConfigStoreService writes and reads
// objects, FleetService says which proxies have them, AccessService who may do what. Dial returns a Client, and
// Client.Explain turns errors of calls into texts for people. The commands of cli, the demo and the local runtime call
// it.
package configapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// Config says where config-watcher is, and how it and the caller authenticate.
type Config struct {
	// Address of config-watcher, host:port, or a list.
	Address string
	// RootFile holds the root certificates, TokenFile the caller's JWT (audience fairlead).
	RootFile, TokenFile string
	// TrustDomain of config-watcher's identity.
	TrustDomain string
	// Namespace and Account of config-watcher's identity; empty means those of an installation.
	Namespace, Account string
	// Roots and Token are taken in the place of the files if Roots is set.
	Roots tlsconf.Source
	Token func(ctx context.Context) (string, error)
	// Dialer, if set, opens the connections, of which Address is then only the name.
	Dialer func(ctx context.Context) (net.Conn, error)
}

// token are call credentials that ask a function.
type token func(ctx context.Context) (string, error)

// GetRequestMetadata and RequireTransportSecurity implement credentials.PerRPCCredentials.
func (t token) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	text, err := t(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity is true: the token is a secret.
func (token) RequireTransportSecurity() bool { return true }

// Client makes calls to config-watcher.
type Client struct {
	configv1.ConfigStoreServiceClient
	configv1.FleetServiceClient
	configv1.AccessServiceClient

	// TrustDomain of the mesh.
	TrustDomain string

	conn    *grpc.ClientConn
	address string
}

// Dial returns a client that connects at its first call.
func Dial(cfg Config) (*Client, error) {
	td, err := spiffeid.TrustDomainFromString(cfg.TrustDomain)
	if err != nil {
		return nil, fmt.Errorf("trust domain %q: %w", cfg.TrustDomain, err)
	}
	id, err := spiffeid.FromSegments(td, "ns", cmp.Or(cfg.Namespace, contract.SystemNamespace), "sa",
		cmp.Or(cfg.Account, contract.ConfigWatcherAccount))
	if err != nil {
		return nil, fmt.Errorf("identity of config-watcher: %w", err)
	}
	client := rpc.ClientConfig{Target: cfg.Address, TokenFile: cfg.TokenFile, MaxRecvBytes: 256 << 20}
	var options []grpc.DialOption
	roots := cfg.Roots
	if roots == nil {
		roots = tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: cfg.RootFile})
	} else {
		client.TokenFile = ""
		options = append(options, grpc.WithPerRPCCredentials(token(cfg.Token)))
	}
	client.TLS = tlsconf.Client(roots, id)
	if cfg.Dialer != nil {
		client.Target = "passthrough:///" + cfg.Address
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return cfg.Dialer(ctx) }))
	}
	conn, err := rpc.Dial(client, options...)
	if err != nil {
		return nil, err
	}
	return &Client{
		ConfigStoreServiceClient: configv1.NewConfigStoreServiceClient(conn),
		FleetServiceClient:       configv1.NewFleetServiceClient(conn),
		AccessServiceClient:      configv1.NewAccessServiceClient(conn),
		TrustDomain:              cfg.TrustDomain,
		conn:                     conn, address: cfg.Address,
	}, nil
}

// CheckFiles returns an error that names the flag if a file cannot be read. Without it the first call would fail later.
func (cfg Config) CheckFiles() error {
	for flag, name := range map[string]string{"--root-cert-file": cfg.RootFile, "--token-file": cfg.TokenFile} {
		if _, err := os.Stat(name); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	return nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// RefusedError says that config-watcher has checked an input and refused it; nothing was changed.
type RefusedError struct {
	// Problems, one line each, name file, object, field, problem and remedy.
	Problems []string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return "refused, nothing was changed:\n  " + strings.Join(e.Problems, "\n  ")
}

// WithExitCode gives an error of config-watcher that says so the exit code for refused input.
func WithExitCode(err error) error {
	if _, ok := errors.AsType[*RefusedError](err); ok {
		return process.Refused(err)
	}
	return err
}

// UnreachableError says that config-watcher did not answer.
type UnreachableError struct {
	Address string
	Reason  string
}

// Error implements error.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("config-watcher at %s cannot be reached: %s; see whether `fairlead up` runs, or its Pods do, and what its logs say, "+
		"or name another with --config-watcher-address", e.Address, e.Reason)
}

// NotFoundError says that an object or a namespace does not exist.
type NotFoundError struct{ Message string }

// Error implements error.
func (e *NotFoundError) Error() string { return e.Message }

// Explain turns an error of a call into one of the errors above, or into one that names the remedy. It returns all
// other errors as they are, so calling it twice is harmless.
func (c *Client) Explain(err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists, codes.Aborted, codes.OutOfRange:
		return &RefusedError{Problems: problems(s)}
	case codes.NotFound:
		return &NotFoundError{Message: s.Message()}
	case codes.Unavailable, codes.DeadlineExceeded:
		return &UnreachableError{Address: c.address, Reason: s.Message()}
	case codes.Unauthenticated:
		return fmt.Errorf("config-watcher at %s does not know who you are: %s; use the token of the run directory, or name one with --token-file",
			c.address, s.Message())
	case codes.PermissionDenied:
		return fmt.Errorf("config-watcher at %s does not allow it: %s; `fairlead config whoami` shows who you are", c.address, s.Message())
	case codes.Canceled:
		return errors.New("cancelled")
	}
	return fmt.Errorf("config-watcher at %s: %s: %s", c.address, s.Code(), s.Message())
}

// problems lists the reasons of a refusal: the details of the status, if the message is only their summary, else the
// message.
func problems(s *status.Status) []string {
	for _, d := range s.Details() {
		bad, ok := d.(*errdetails.BadRequest)
		if !ok || len(bad.GetFieldViolations()) == 0 {
			continue
		}
		list := lists.Map(bad.GetFieldViolations(), (*errdetails.BadRequest_FieldViolation).GetDescription)
		if len(list) > strings.Count(s.Message(), "\n")+1 {
			return list
		}
	}
	return strings.Split(strings.TrimSpace(s.Message()), "\n")
}
