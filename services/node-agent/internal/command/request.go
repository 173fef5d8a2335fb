package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/node-agent/internal/envoy"
	"fairlead.dev/services/node-agent/internal/statedir"
)

// adminPort is the port of Envoy's admin interface in Istio's Pods. Here it stands for the socket.
const adminPort = 15000

func request() *cobra.Command {
	var dir string
	var timeout time.Duration
	var port uint16
	cmd := &cobra.Command{
		Use:   "request GET|POST <path> [<body>]",
		Short: "Send a request to Envoy's admin interface, or to the agent, and print the answer",
		Example: "  node-agent request GET config_dump\n" +
			"  node-agent request POST 'logging?level=debug' --state-dir .run/pods/web\n" +
			"  node-agent request --debug-port=15020 POST drain",
		Args: usage(cobra.RangeArgs(2, 3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			method := strings.ToUpper(args[0])
			if method != http.MethodGet && method != http.MethodPost {
				return process.WithExitCode(fmt.Errorf("method %q: want GET or POST", args[0]), process.ExitUsage)
			}
			if port == 0 {
				return process.WithExitCode(errors.New("--debug-port 0: want a port, 1 to 65535"), process.ExitUsage)
			}
			target := envoy.NewClient(fmt.Sprintf("localhost:%d", port))
			if port == adminPort {
				socket, err := filepath.Abs(filepath.Join(dir, statedir.Admin))
				if err != nil {
					return err
				}
				target = envoy.NewAdmin(socket)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			var text string
			if len(args) > 2 {
				text = args[2]
			}
			body, err := target.RequestWith(ctx, method, args[1], text)
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(cmd.OutOrStdout(), body)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "state-dir", "./etc/istio/proxy", "the agent's state directory")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the whole answer")
	cmd.Flags().Uint16Var(&port, "debug-port", adminPort, "port of this machine to ask; 15000 is Envoy's admin interface, 15020 the agent")
	return cmd
}

func wait() *cobra.Command {
	var url string
	var timeoutSeconds, requestMillis, periodMillis int
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the proxy is ready",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeoutSeconds <= 0 || requestMillis <= 0 || periodMillis <= 0 {
				return process.WithExitCode(errors.New("--timeoutSeconds, --requestTimeoutMillis and --periodMillis must be above 0"),
					process.ExitUsage)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Duration(timeoutSeconds)*time.Second)
			defer cancel()
			client := &http.Client{Timeout: time.Duration(requestMillis) * time.Millisecond}
			return untilReady(ctx, client, url, time.Duration(periodMillis)*time.Millisecond)
		},
	}
	// The names are those of Istio's agent, which Pods use.
	cmd.Flags().StringVar(&url, "url", "http://localhost:15021/healthz/ready", "readiness URL to ask")
	cmd.Flags().IntVar(&timeoutSeconds, "timeoutSeconds", 60, "give up after this many seconds")
	cmd.Flags().IntVar(&requestMillis, "requestTimeoutMillis", 500, "time limit of one request")
	cmd.Flags().IntVar(&periodMillis, "periodMillis", 500, "pause between requests")
	return cmd
}

// untilReady asks url every period until the answer is 200. When ctx ends it returns the last answer as an error.
func untilReady(ctx context.Context, client *http.Client, url string, period time.Duration) error {
	var last error
	for {
		if last = askReady(ctx, client, url); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the proxy is not ready: %w", last)
		case <-time.After(period):
		}
	}
}

func askReady(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
