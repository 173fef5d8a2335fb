package machine

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports of FreePorts are below 32768, from where on Linux gives ports to clients by default: a connection that is
// made meanwhile takes none of them.
const (
	firstPort = 20000
	endOfPort = 32768
	portTries = 100
)

// FreePorts finds n addresses on loopback that nobody listens on.
func FreePorts(n int) ([]string, error) {
	var addresses []string
	for tries := 0; len(addresses) < n; tries++ {
		lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(endOfPort-firstPort)))
		if err != nil {
			if tries > portTries {
				return nil, fmt.Errorf("no %d free ports on loopback in %d tries: %w", n, tries, err)
			}
			continue
		}
		defer lis.Close()
		addresses = append(addresses, lis.Addr().String())
	}
	return addresses, nil
}
