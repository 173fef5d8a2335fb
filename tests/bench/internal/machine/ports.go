package machine

import (
	"net"
)

// FreePorts finds addresses on loopback that nobody listens on.
func FreePorts(n int) ([]string, error) {
	var addresses []string
	for range n {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer lis.Close()
		addresses = append(addresses, lis.Addr().String())
	}
	return addresses, nil
}
