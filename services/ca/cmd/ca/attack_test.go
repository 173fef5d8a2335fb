package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/catest"
)

const (
	// watches is how many bundle watches may be open.
	watches = 1500
	// perConnection is fewer than the streams that a connection may have.
	perConnection = 25
)

// watch opens a watch and waits for its bundle.
func watch(ctx context.Context, conn *grpc.ClientConn, subscriber string) (cav1.TrustService_WatchBundleClient, error) {
	stream, err := cav1.NewTrustServiceClient(conn).WatchBundle(ctx)
	if err != nil {
		return nil, err
	}
	_ = stream.Send(&cav1.WatchBundleRequest{Subscriber: subscriber}) // Recv tells why, if this fails
	_, err = stream.Recv()
	return stream, err
}

// watches opens n, so many on a connection, until one is refused.
func (c *child) watches(ctx context.Context, n, perConnection int) (opened []cav1.TrustService_WatchBundleClient, err error) {
	c.t.Helper()
	var conn *grpc.ClientConn
	for i := range n {
		if i%perConnection == 0 {
			conn = c.dial()
		}
		stream, err := watch(ctx, conn, fmt.Sprintf("%0256d", i))
		if err != nil {
			return opened, fmt.Errorf("watch %d: %w", i, err)
		}
		opened = append(opened, stream)
	}
	return opened, nil
}

// costly makes calls as costly as can be: a watch holds its headers.
func costly(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "padding", strings.Repeat("x", 7<<10))
}

// serves asserts that a certificate is issued as quickly as ever, and that the process stays within the memory that it
// is given.
func (c *child) serves(ctx context.Context) {
	c.t.Helper()
	csr, conn := catest.CSR(c.t, catest.Key(c.t), &x509.CertificateRequest{}), c.dial()
	testkit.Quick(c.t, 2*time.Second, func() time.Duration {
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
		defer cancel()
		if _, err := security.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
			&security.IstioCertificateRequest{Csr: csr}); err != nil {
			c.t.Fatal(err)
		}
		return time.Since(began)
	})
	got := c.resident()
	c.t.Logf("%d MiB resident, race detector: %t", got>>20, raceEnabled)
	if !raceEnabled && got > memoryLimit { // the race detector takes several times the memory
		c.t.Errorf("%d MiB resident, the limit is %d", got>>20, memoryLimit>>20)
	}
}

// One identity takes all bundle watches. Another has its watches and its certificate all the same, as many as a large
// Deployment has Pods.
func TestOneIdentityTakesAllBundleWatches(t *testing.T) {
	c := spawn(t)
	held, release := context.WithTimeout(c.as("edge", "batch"), testkit.Patience)
	defer release()
	greedy := costly(held)
	all, err := c.watches(greedy, watches, perConnection)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.watches(greedy, 1, 1)
	if problem := checkRefused(err, "watch_limit"); problem != nil {
		t.Error(problem)
	}
	modest := c.as("default", "reviews")
	if _, err := c.watches(modest, watches/2, perConnection); err != nil {
		t.Errorf("watches of a Deployment while another identity had taken all: %v", err)
	}
	_, err = all[len(all)-1].Recv()
	if problem := checkRefused(err, "watch_displaced"); problem != nil {
		t.Error(problem)
	}
	c.serves(modest)
}

// All the watches that may be, each on a connection of its own as programs have them, fit into the memory beside
// issuing.
func TestAllBundleWatchesOnTheirOwnConnections(t *testing.T) {
	c := spawn(t)
	const identities = 5
	for i := range identities {
		if _, err := c.watches(costly(c.as("edge", fmt.Sprint("batch-", i))), watches/identities, 1); err != nil {
			t.Fatal(err)
		}
	}
	c.serves(c.as("default", "reviews"))
}

func checkRefused(err error, reason string) error {
	var st interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &st) || st.GRPCStatus().Code() != codes.ResourceExhausted {
		return fmt.Errorf("got %w, want RESOURCE_EXHAUSTED", err)
	}
	retry, why := time.Duration(0), ""
	for _, d := range st.GRPCStatus().Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		case *errdetails.ErrorInfo:
			why = d.GetReason()
		}
	}
	if retry < 30*time.Second || retry > time.Minute || why != reason {
		return fmt.Errorf("details say %q, retry after %s; want %s, and half a minute to a minute", why, retry, reason)
	}
	return nil
}
