package auth

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ClusterError says why a token is refused that a key of a further cluster has signed.
type ClusterError struct {
	// Cluster is the name of that cluster.
	Cluster string
	// ID is the identity that the token would prove; zero if its claims name none.
	ID  spiffeid.ID
	Err error
}

// Error implements error.
func (e *ClusterError) Error() string { return fmt.Sprintf("remote cluster %s: %v", e.Cluster, e.Err) }

// Unwrap implements errors.Unwrap.
func (e *ClusterError) Unwrap() error { return e.Err }

// verifyForeign decides about a token that a further cluster has signed. Its errors are ClusterErrors.
func (j *JWT) verifyForeign(c *claims, of *foreign) (Peer, error) {
	id, err := identity(of.td, c.Subject)
	if err == nil {
		err = j.verifyClaims(&c.Claims, of.Issuer)
	}
	if err == nil {
		err = j.allowed(of, id)
	}
	if err != nil {
		return Peer{}, &ClusterError{Cluster: of.Name, ID: id, Err: err}
	}
	return Peer{ID: id, Method: MethodJWT, Token: c.token(), Cluster: of.Name}, nil
}

// CheckCluster returns why a further cluster may not have an identity now, nil if it may. Who has a certificate that
// was issued for a token of the cluster is asked about with it, because what the cluster may have can change. Its
// errors are ClusterErrors.
func (j *JWT) CheckCluster(name string, id spiffeid.ID) error {
	keys, err := j.keys.get(false)
	if err != nil {
		return &ClusterError{Cluster: name, ID: id, Err: fmt.Errorf("the server has no verification keys")}
	}
	of, ok := keys.clusters[name]
	if !ok {
		return &ClusterError{Cluster: name, ID: id, Err: fmt.Errorf("its tokens are not trusted any more; " +
			"`fairlead remote-clusters trust` has them trusted")}
	}
	if err := j.allowed(of, id); err != nil {
		return &ClusterError{Cluster: name, ID: id, Err: err}
	}
	return nil
}

// allowed returns why a cluster may not have an identity.
func (j *JWT) allowed(of *foreign, id spiffeid.ID) error {
	namespace, account, ok := WorkloadOf(id)
	switch {
	case !ok:
		return fmt.Errorf("%s is no service account", id)
	case id.TrustDomain() != of.td:
		return fmt.Errorf("%s is of another trust domain than %s, in which its identities are", id, of.td.IDString())
	case j.cfg.Reserved(namespace, account):
		return fmt.Errorf("service account %s/%s is of the mesh's own services, or of their namespaces, whose identities no other cluster has; "+
			"run the workload in another namespace", namespace, account)
	case !of.Allows(namespace):
		return fmt.Errorf("namespace %s is not one of those whose identities it may have (%s); add it with `fairlead remote-clusters trust "+
			"--namespaces`, or run the workload in one of these", namespace, told(of.Namespaces))
	}
	return nil
}

// maxTold is how many namespaces an error names.
const maxTold = 10

func told(names []string) string {
	if more := len(names) - maxTold; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxTold], ", "), more)
	}
	return strings.Join(names, ", ")
}
